"""Compare the features of two networks by centered kernel alignment (CKA).

Kornblith et al., "Similarity of Neural Network Representations Revisited", ICML 2019,
https://arxiv.org/abs/1905.00414. In mini-batches: Nguyen et al., "Do Wide and Deep Networks Learn
the Same Things?", ICLR 2021, https://arxiv.org/abs/2010.15327.
"""

import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from peerdg.analyze.drawing import heat_map, panels, save
from peerdg.analyze.networks import require_alike
from peerdg.errors import DataError, PeerdgWarning
from peerdg.long_work import iterate
from peerdg.models.backbones import DigitsCNN
from peerdg.models.classifier import Classifier, images_per_pass, in_eval_mode
from peerdg.models.layers import OUTPUT, inserted
from peerdg.models.stages import find_stages, named_maps
from peerdg.terminal import visible

MIN_BATCH = 4  # the unbiased estimate divides by n - 3
CONSTANT = 1e-6  # relative deviation from the mean that float32 cannot distinguish from rounding
MAX_VALUES = 2**16  # values in a map. Larger maps are average-pooled.

# Pooling and ReLU of the Digits network are not modules: their output is the next layer's input.
_DIGITS = {
    "conv1": "after conv1",
    "pool1": "before conv2",
    "conv2": "after conv2",
    "pool2": "before fc1",
    "fc1": "after fc1",
    "fc2": "after fc2",
}


@dataclass(frozen=True, eq=False)
class CKA:
    """Similarity of each layer of one network (rows) with each layer of another (columns)."""

    layers: tuple[str, ...]
    matrix: Tensor  # float64 [layers, layers], 1 for equal features up to rotation and scale
    images: int

    @property
    def diagonal(self) -> dict[str, float]:
        """Similarity of each layer with the same layer of the other network."""
        return dict(zip(self.layers, self.matrix.diagonal().tolist(), strict=True))


def cka(
    a: Classifier,
    b: Classifier,
    images: Tensor,
    *,
    layers: Sequence[str] | None = None,
    batch_size: int | None = 256,
    unbiased: bool = True,
) -> CKA:
    """Compute linear CKA between the layers of two networks, in eval mode.

    With K = XXᵀ and L = YYᵀ for the features X and Y of a batch, estimates of HSIC(K, L),
    HSIC(K, K) and HSIC(L, L) are averaged over batches. Then
    CKA = HSIC(K, L) / sqrt(HSIC(K, K) HSIC(L, L)).

    Example: `cka(run.network("init"), run.network(30), run.source_images(2000)).diagonal`

    Args:
        a: Network of the rows.
        b: Network of the columns, with the same layers.
        images: Images `[N, 3, H, W]` in the size of the networks.
        layers: Modules of the encoder, see `activations`.
        batch_size: Images per batch. None takes all images in one batch.
        unbiased: Whether to use the unbiased estimate HSIC₁. The biased one is larger if layers
            have more units than a batch has images.
    """
    require_alike([a, b])
    batches = [x for x in images.split(batch_size or len(images)) if len(x) >= MIN_BATCH]
    if not batches:
        raise DataError(f"CKA needs batches of at least {MIN_BATCH} images, got {len(images)}.")
    hsic = torch.zeros(())
    for batch in iterate(batches, "CKA"):  # the same images for both networks
        n, outputs = len(batch), [activations(model, batch, layers) for model in (a, b)]
        k, m = (torch.stack([centered_gram(x, unbiased) for x in o.values()]) for o in outputs)
        weight = n / (n * (n - 3) if unbiased else (n - 1) ** 2)
        pairs = torch.stack([k, k, m]), torch.stack([m, k, m])  # (3, layers, n, n)
        hsic = hsic + weight * torch.einsum("pxij,pyij->pxy", *pairs)
    names, (cross, of_a, of_b) = tuple(outputs[0]), hsic.cpu()
    scale = of_a.diagonal()[:, None] * of_b.diagonal()
    constant = [name for name, value in zip(names, scale.diagonal(), strict=True) if value == 0]
    if constant:
        warnings.warn(
            f"The features of {', '.join(constant)} are constant, so their CKA is set to 0.",
            PeerdgWarning,
            stacklevel=2,
        )
    matrix = torch.where(scale > 0, cross / scale.sqrt(), 0.0)
    return CKA(names, matrix, sum(map(len, batches)))


@torch.inference_mode()
def activations(
    model: Classifier, images: Tensor, layers: Sequence[str] | None = None
) -> dict[str, Tensor]:
    """Return the outputs of layers in eval mode, by name, flattened to `[n, values]`.

    The layers are modules of the encoder, by default its stages, followed by features and logits.
    The Digits network has seven layers: conv1, pool1, conv2, pool2, fc1, fc2 and logits.

    Maps of more than 65,536 values are average-pooled to 8 x 8, and named accordingly.
    """
    outputs: dict[str, list[Tensor]] = defaultdict(list)

    def keep(name: str, output: Tensor) -> Tensor:
        is_map = output.ndim == 4 and output.shape[2] == output.shape[3]
        if is_map and output[0].numel() > MAX_VALUES:
            pooled = F.adaptive_avg_pool2d(output, 8).flatten(1)
            outputs[f"{name}, 8 x 8"].append(pooled)
        else:
            # Channels last, to match the memory layout. Copy, because an in-place ReLU may follow.
            values = output.movedim(1, -1).flatten(1) if is_map else output.flatten(1)
            outputs[name].append(values.clone())
        return output

    size, is_digits = int(images.shape[-1]), layers is None and isinstance(model.encoder, DigitsCNN)
    places = _DIGITS
    if not is_digits:  # `named_maps` refuses modules that are missing or called twice
        stages = find_stages(model, size) if layers is None else named_maps(model, size, layers)
        places = {each.name: f"after {each.name}" for each in stages if each.name != OUTPUT}
    # A stage of SqueezeNet and CaffeNet is called "features", like H(x) below.
    hooks = [(at, partial(keep, n if n != "features" else f"{n} map")) for n, at in places.items()]
    with inserted(model.encoder, hooks), in_eval_mode(model):
        for batch in images.split(images_per_pass(size)):
            features = model.features(batch.to(model.head.weight.device))
            if not is_digits:
                keep("features", features)
            keep("logits", model.head(features))
    return {n: torch.cat(p) if len(p) > 1 else p[0] for n, p in outputs.items()}


@torch.inference_mode()
def centered_gram(x: Tensor, unbiased: bool = True) -> Tensor:
    """Center K = XXᵀ so that the estimate of HSIC is a scaled inner product ⟨K̃, L̃⟩. Overwrite x.

    The biased estimate is ⟨K̃, L̃⟩ / (n-1)² with K̃ = HKH. The unbiased estimate is

        HSIC₁(K, L) = [tr(KL) + (1ᵀK1)(1ᵀL1) / ((n-1)(n-2)) - 2 / (n-2) 1ᵀKL1] / (n(n-3))

    with zero diagonals. It equals ⟨K̃, L̃⟩ / (n(n-3)) for U-centered matrices (Székely and Rizzo,
    "Partial distance correlation with methods for dissimilarities", 2014), and therefore cannot be
    negative for K = L.
    """
    size = x.norm()
    x -= x.mean(0)  # changes neither estimate, and avoids cancellation
    x *= x.norm() > CONSTANT * size
    gram = (x @ x.T).double()  # (n, n)
    if unbiased:
        n = len(gram)
        rows = gram.fill_diagonal_(0).sum(0)
        gram += rows.sum() / ((n - 1) * (n - 2)) - (rows[:, None] + rows) / (n - 2)
        gram.fill_diagonal_(0)
    return gram


def draw_cka(rows: Mapping[str, Mapping[str, CKA]], path: Path, *, about: str) -> None:
    """Draw heat maps from 0 to 1, one row per run, with numbers on their diagonals."""
    figure, axes = panels(len(rows), max(map(len, rows.values())), side=3.0)
    for line, (run, results) in zip(axes, rows.items(), strict=True):
        for axis in line[len(results) :]:
            axis.set_visible(False)
        for axis, (name, result) in zip(line, results.items(), strict=False):
            title = f"epoch {name}" if name.isdecimal() else name
            image = heat_map(axis, result.matrix, result.layers, title, only_diagonal=True)
        line[0].set_ylabel(visible(run), fontsize=9, parse_math=False)
    figure.colorbar(image, ax=axes, shrink=0.8, label="CKA")
    figure.suptitle(visible(about), fontsize=10, parse_math=False, wrap=True)
    save(figure, path)
