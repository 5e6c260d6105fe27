"""Layers of methods: added to a network, inserted for training, or behind its features.

Added layers are made again from the data that a model folder stores.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Literal

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
OUTPUT = "."  # names the encoder itself
STYLE_EPS = 1e-6  # under the square root, as in the released code


class GaussianBottleneck(nn.Module):
    """z = μ(h) + s·σ(h)·ε with ε ~ N(0, 1) in training mode, z = μ(h) in eval mode.

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
        """μ and log σ² of the features."""
        return F.leaky_relu(self.mean(features)), F.relu(self.log_variance(features))

    def sample(self, mu: Embedding, log_variance: Embedding) -> Embedding:
        """μ + s·σ·ε."""
        return mu + self.noise * (log_variance / 2).exp() * torch.randn_like(mu)

    def extra_repr(self) -> str:
        return f"noise={self.noise}"


class StyleMixing(nn.Module):
    """Mix the styles of the images in a batch: active in training, the identity in use.

    Zhou et al., "Domain generalization with MixStyle", ICLR 2021, https://arxiv.org/abs/2104.02008.
    The style of an image is the mean μ and standard deviation σ of each channel over the places of
    its map. With x̃ a random permutation of the batch x and λ ~ Beta(α, α) for each image,

        γ = λ σ(x) + (1 - λ) σ(x̃)        β = λ μ(x) + (1 - λ) μ(x̃)
        MixStyle(x) = γ (x - μ(x)) / σ(x) + β

    with probability p in each pass in training mode; otherwise x. Gradients do not pass through
    μ and σ. The permutation is of the whole batch, as for a single source domain.

    All that is random comes from torch's global generator on the CPU, as for dropout: a training
    loop seeds it for each step (`peerdg.rng.seeded`), and every device sees the same draws.

    Args:
        channel: Dimension of a batch that holds the channels. All but it and the first are places.
        p: Probability that a pass mixes.
        alpha: α; small values leave most images nearly their own style, or another's.
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
        """Return MixStyle(x) with λ of each image and the image that it is mixed with given."""
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
    """Make R, from features to the space in which task and proxy model are compared.

    An MLP of Linear-norm-ReLU blocks and a bare last Linear.

    The PEER paper gives the number of layers and the output dimension (Digits 2 and 128, the other
    benchmarks 3 and 1024). Hidden width, norm and activation are not given; the defaults follow
    the head of Barlow Twins (Zbontar et al., ICML 2021) with hidden width max(out_dim, 512).
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
"""All kinds of layers. The list is closed, so that no file can name code to run."""


def make_layer(layer: Layer) -> Any:
    """Make a layer with fresh weights."""
    options = {name: value for name, value in layer.items() if name not in ("kind", "place")}
    return KINDS[layer["kind"]](**options)


def insert(encoder: nn.Module, place: str, layer: nn.Module) -> None:
    """Put a layer behind or in front of a module of the encoder."""
    side, _, name = place.partition(" ")
    module = encoder.get_submodule(name)
    both = (module, layer) if side == "after" else (layer, module)
    encoder.set_submodule(name, nn.Sequential(*both))


@contextmanager
def inserted(
    encoder: nn.Module, layers: Iterable[tuple[str, Callable[[Tensor], Tensor]]]
) -> Iterator[None]:
    """Call layers at places, `"after NAME"` or `"before NAME"`, of the encoder inside the block.

    The hooks are removed afterwards, so copies of the network do not have them. A compiled encoder
    would ignore them. Inside the block it runs as if it were not compiled.
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
