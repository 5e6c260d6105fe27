"""Layers that a method adds to a network, made again from the data that a model folder stores."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from peerdg.models.meta_features import MetaFeatures

Embedding = Float[Tensor, "batch out"]
Layer = Mapping[str, Any]
"""`kind`, `place`, and the options of the kind, as plain values.

Places are `"features"`, between encoder and head, and `"after NAME"` and `"before NAME"` of a
module of the encoder.
"""

FEATURES = "features"
OUTPUT = "."
"""Names the encoder itself."""


class GaussianBottleneck(nn.Module):
    """z = μ(h) + s·σ(h)·ε with ε ~ N(0, 1) in training mode, z = μ(h) in eval mode.

    μ = LeakyReLU(linear), log σ² = ReLU(linear): the embedding of L2D's released code, Wang et al.,
    "Learning to diversify", ICCV 2021, https://arxiv.org/abs/2108.11726.

    Args:
        inputs: Width of the features h.
        outputs: Width of z.
        noise: s.
    """

    def __init__(self, inputs: int, outputs: int, *, noise: float = 0.2) -> None:
        super().__init__()
        self.mean = nn.Linear(inputs, outputs)
        self.log_variance = nn.Linear(inputs, outputs)
        self.noise = noise

    def forward(self, features: Float[Tensor, "batch in"]) -> Embedding:
        """z: a sample in training mode, the mean in eval mode."""
        if not self.training:
            return F.leaky_relu(self.mean(features))
        return self.sample(*self.gaussian(features))

    def gaussian(self, features: Float[Tensor, "batch in"]) -> tuple[Embedding, Embedding]:
        """μ and log σ² of the features."""
        return F.leaky_relu(self.mean(features)), F.relu(self.log_variance(features))

    def sample(self, mu: Embedding, log_variance: Embedding) -> Embedding:
        """μ + s·σ·ε."""
        return mu + self.noise * (log_variance / 2).exp() * torch.randn_like(mu)

    def extra_repr(self) -> str:
        """Show the scale of the noise, which is not a layer."""
        return f"noise={self.noise}"


KINDS: dict[str, Callable[..., nn.Module]] = {
    "gaussian-bottleneck": GaussianBottleneck,
    "meta-features": MetaFeatures,
}
"""All kinds of layers. The list is closed, so that no file can name code to run."""


def make_layer(layer: Layer) -> nn.Module:
    """Make a layer with fresh weights.

    Raises:
        ValueError: If there is no such kind, or its options do not fit.
    """
    options = {name: value for name, value in layer.items() if name not in ("kind", "place")}
    if layer["kind"] not in KINDS:
        raise ValueError(f"there is no kind of layer {layer['kind']!r}")
    try:
        return KINDS[layer["kind"]](**options)
    except (TypeError, RuntimeError) as error:
        raise ValueError(f"the options of a {layer['kind']} do not fit: {error}") from error


def insert(encoder: nn.Module, place: str, layer: nn.Module) -> None:
    """Put a layer behind or in front of a module of the encoder.

    Raises:
        ValueError: If the encoder has no such module.
    """
    side, _, name = place.partition(" ")
    module = dict(encoder.named_modules()).get(name)
    if side not in ("after", "before") or module is None or module is encoder:
        raise ValueError(f"the network has no place '{place}'")
    both = (module, layer) if side == "after" else (layer, module)
    encoder.set_submodule(name, nn.Sequential(*both))


@contextmanager
def inserted(
    encoder: nn.Module, layers: Iterable[tuple[str, Callable[[Tensor], Tensor]]]
) -> Iterator[None]:
    """Call layers at places of the encoder inside the block, by forward hooks.

    The hooks are removed afterwards, so copies of the network do not have them. A compiled encoder
    would ignore them. Inside the block it runs as if it were not compiled.

    Args:
        encoder: The network.
        layers: Places, `"after NAME"` or `"before NAME"`, and what is called there.
    """
    modules = modules_of(encoder)
    with ExitStack() as stack, eager(encoder):
        for place, layer in layers:
            side, _, name = place.partition(" ")
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
    """Return all modules of an encoder by name, the encoder itself as `OUTPUT`."""
    return {name or OUTPUT: module for name, module in encoder.named_modules()}


def eager(encoder: nn.Module) -> AbstractContextManager[object]:
    """Inside the block, run a compiled encoder as it would run without compilation."""
    if encoder._compiled_call_impl is None:  # the compiler takes a second and a half to import
        return nullcontext()
    stance: AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
    return stance
