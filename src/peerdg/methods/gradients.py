"""How strongly each term of a loss pulls at the encoder, measured on a fixed batch."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn

from peerdg.methods.base import Batch, RunContext
from peerdg.rng import seed_for


def gradient_norm(term: Tensor, encoder: nn.Module) -> Float[Tensor, ""]:
    """‖∂term/∂θ‖₂ over all trained parameters θ of the encoder; the term's graph is used up."""
    parameters = [p for p in encoder.parameters() if p.requires_grad]
    found = torch.autograd.grad(term, parameters, allow_unused=True)
    squares = [gradient.float().square().sum() for gradient in found if gradient is not None]
    return torch.stack(squares).sum().sqrt() if squares else term.new_zeros(())


@contextmanager
def unchanged_buffers(module: nn.Module) -> Iterator[None]:
    """Undo what forward passes inside the block do to buffers, e.g. to batch statistics."""
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    try:
        yield
    finally:
        for name, buffer in module.named_buffers():
            buffer.copy_(before[name])


def probe_batch(context: RunContext, images: int) -> Batch:
    """A fixed batch of clean images, spread over the classes as all of them are.

    Args:
        context: What the run offers.
        images: How many at most; fewer if one pass of the run takes fewer.
    """
    chunk, labels = next(iter(context.clean.labelled()))
    # Rows are sorted within a chunk, perhaps by class: take them evenly from all of it.
    chosen = torch.linspace(0, len(chunk) - 1, min(images, len(chunk))).round().long()
    chosen = chosen.to(chunk.device)
    return Batch(chunk[chosen], labels[chosen], seed=seed_for(context.seed, "probe"))
