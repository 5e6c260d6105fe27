"""Define layers that methods add to a network, during training or on top of its features."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from peerdg.distributed import on_whole_batch
from peerdg.models.meta_features import MetaFeatures

Embedding = Float[Tensor, "batch out"]
Layer = Mapping[str, Any]
"""Plain values that describe an added layer: `kind`, `place` and the options of that kind.

A place is `"features"` (between encoder and head), or `"after NAME"` or `"before NAME"` for a
module of the encoder.
"""

FEATURES = "features"
OUTPUT = "."  # name of the encoder itself
STYLE_EPS = 1e-6  # added under the square root, as in the released code


class GaussianBottleneck(nn.Module):
    """Compute z = μ(h) + s·σ(h)·ε with ε ~ N(0, 1) in training mode, z = μ(h) in eval mode.

    μ = LeakyReLU(linear), log σ² = ReLU(linear): the embedding of L2D's released code, Wang et al.,
    "Learning to diversify", ICCV 2021, https://arxiv.org/abs/2108.11726. `noise` is s.
    """

    def __init__(self, inputs: int, outputs: int, *, noise: float = 0.2) -> None:
        super().__init__()
        self.mean = nn.Linear(inputs, outputs)
        self.log_variance = nn.Linear(inputs, outputs)
        self.noise = noise

    def forward(self, features: Float[Tensor, "batch in"]) -> Embedding:
        if not self.training:
            return F.leaky_relu(self.mean(features))
        return self.sample(*self.gaussian(features))

    def gaussian(self, features: Float[Tensor, "batch in"]) -> tuple[Embedding, Embedding]:
        """Return μ and log σ² of the features."""
        return F.leaky_relu(self.mean(features)), F.relu(self.log_variance(features))

    def sample(self, mu: Embedding, log_variance: Embedding) -> Embedding:
        """Draw μ + s·σ·ε."""
        return mu + self.noise * (log_variance / 2).exp() * torch.randn_like(mu)

    def extra_repr(self) -> str:
        return f"noise={self.noise}"


class StyleMixing(nn.Module):
    """Mix styles between the images of a batch in training mode. Identity in eval mode.

    Zhou et al., "Domain generalization with MixStyle", ICLR 2021, https://arxiv.org/abs/2104.02008.
    The style of an image is the mean μ and standard deviation σ of each channel over the pixels of
    its map. With x̃ a random permutation of the batch x and λ ~ Beta(α, α) for each image,

        γ = λ σ(x) + (1 - λ) σ(x̃)        β = λ μ(x) + (1 - λ) μ(x̃)
        MixStyle(x) = γ (x - μ(x)) / σ(x) + β

    is returned with probability p in each training pass, otherwise x. Gradients do not flow through
    μ and σ. There is one source domain, so the whole batch is permuted.

    Random numbers come from torch's global CPU generator, whatever the device. A training loop
    seeds it for each step (`peerdg.rng.seeded`).

    Args:
        channel: Channel dimension of a batch. μ and σ are taken over all others but the first.
        p: Probability that a pass mixes.
        alpha: α. Small values give λ near 0 or 1 for most images.
    """

    def __init__(self, *, channel: int = 1, p: float = 0.5, alpha: float = 0.1) -> None:
        super().__init__()
        self.channel = channel
        self.p = p
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or torch.rand((), device="cpu") >= self.p:
            return x
        alpha = torch.tensor(self.alpha, device="cpu")
        share = torch.distributions.Beta(alpha, alpha).sample((len(x),))
        other = torch.randperm(len(x), device="cpu")
        return self.mixed(x, share.to(x.device), other.to(x.device))

    def mixed(self, x: Tensor, share: Tensor, other: Tensor) -> Tensor:
        """Return MixStyle(x) for the given λ (`share`) and partner (`other`) of each image."""
        places = [d for d in range(1, x.dim()) if d != self.channel]
        lam = share.view(-1, *[1] * (x.dim() - 1))
        wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
        with torch.no_grad():
            variance, mu = torch.var_mean(wide, dim=places, correction=0, keepdim=True)
            sigma = (variance + STYLE_EPS).sqrt()
            gamma = lam * sigma + (1 - lam) * sigma[other]
            beta = lam * mu + (1 - lam) * mu[other]
        return (gamma * ((wide - mu) / sigma) + beta).to(x.dtype)


def projection_head(
    in_dim: int,
    out_dim: int,
    *,
    layers: int = 2,
    hidden_dim: int | None = None,
    norm: Literal["bn", "ln", "none"] = "bn",
) -> nn.Sequential:
    """Build the projection R, an MLP of Linear-norm-ReLU blocks that ends with a Linear layer.

    R maps features to the space in which task model and proxy are compared. The PEER paper gives
    the number of layers and the output dimension (Digits 2 and 128, the other benchmarks 3 and
    1024), but not hidden width, norm or activation. The defaults follow the head of Barlow Twins
    (Zbontar et al., ICML 2021) with hidden width max(out_dim, 512).
    """
    hidden_dim = hidden_dim or max(out_dim, 512)
    blocks: list[nn.Module] = []
    for _ in range(layers - 1):
        blocks.append(nn.Linear(in_dim, hidden_dim))
        if norm != "none":
            blocks.append(nn.BatchNorm1d(hidden_dim) if norm == "bn" else nn.LayerNorm(hidden_dim))
        blocks.append(nn.ReLU(inplace=True))
        in_dim = hidden_dim
    return nn.Sequential(*blocks, nn.Linear(in_dim, out_dim))


KINDS: dict[str, Callable[..., nn.Module]] = {
    "gaussian-bottleneck": GaussianBottleneck,
    "meta-features": MetaFeatures,
}
"""All kinds of added layers. The list is closed, so a model file cannot name code to run."""


def make_layer(layer: Layer) -> Any:
    """Build a layer with fresh weights."""
    options = {name: value for name, value in layer.items() if name not in ("kind", "place")}
    return KINDS[layer["kind"]](**options)


def insert(encoder: nn.Module, place: str, layer: nn.Module) -> None:
    """Insert a layer after or before a module of the encoder."""
    side, _, name = place.partition(" ")
    module = encoder.get_submodule(name)
    both = (module, layer) if side == "after" else (layer, module)
    encoder.set_submodule(name, nn.Sequential(*both))


@contextmanager
def inserted(
    encoder: nn.Module, layers: Iterable[tuple[str, Callable[[Tensor], Tensor]]]
) -> Iterator[None]:
    """Insert layers `"after NAME"` or `"before NAME"` into the encoder, inside the block.

    The layers are hooks, so copies made after the block do not have them. A compiled encoder would
    ignore hooks, so it runs uncompiled inside the block.
    """
    modules = modules_of(encoder)
    with ExitStack() as stack, eager(encoder):
        for place, layer in layers:
            side, _, name = place.partition(" ")
            layer = on_whole_batch(layer)
            if side == "after":
                hook = modules[name].register_forward_hook(
                    lambda module, inputs, output, layer=layer: layer(output)
                )
            else:
                hook = modules[name].register_forward_pre_hook(
                    lambda module, inputs, layer=layer: (layer(inputs[0]), *inputs[1:])
                )
            stack.callback(hook.remove)
        yield


def modules_of(encoder: nn.Module) -> dict[str, nn.Module]:
    """Return all modules of an encoder by name. `OUTPUT` is the encoder itself."""
    return {name or OUTPUT: module for name, module in encoder.named_modules()}


def eager(encoder: nn.Module) -> AbstractContextManager[object]:
    """Run a compiled encoder without compilation inside the block."""
    if encoder._compiled_call_impl is None:  # skip importing the compiler, which takes 1.5 s
        return nullcontext()
    stance: AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
    return stance
