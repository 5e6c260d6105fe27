"""Find the layer that gives a network's logits, by watching the network at work."""

import torch
from torch import Tensor, nn

from peerdg.errors import ConfigError
from peerdg.terminal import one_line

SIZES = (32, 224, 64, 128, 28, 96, 256, 299, 384)  # tried when the image size is not given
IMAGES = 4  # random ones; a few logits would look alike before and after a ReLU by chance
_BUILD = "Build peerdg.Classifier(encoder, head, classes=...) from its two parts."


def find_last_layer(network: nn.Module, image_size: int | None) -> str:
    """The name of the linear layer whose output is the network's output.

    Args:
        network: Takes images `[B, 3, H, W]`; left as it is.
        image_size: Side of images it takes; None tries the usual ones.

    Raises:
        ConfigError: If something follows the layer, there is none, or the network does not run.
    """
    name = type(network).__name__
    layers: dict[nn.Module, str] = {
        part: key
        for key, part in network.named_modules()
        if isinstance(part, nn.Linear) and part is not network  # a bare layer has no features
    }
    if not layers:
        raise ConfigError(f"{name} has no linear layer after its features.", hint=_BUILD)
    seen: dict[str, Tensor] = {}

    def watch(layer: nn.Module, _: object, output: Tensor) -> None:
        seen[layers[layer]] = output.clone()  # a ReLU that follows may work in place

    hooks = [layer.register_forward_hook(watch) for layer in layers]
    modes = {part: part.training for part in network.modules()}
    try:
        output = _run(network.eval(), (image_size,) if image_size else SIZES)
    finally:
        for hook in hooks:
            hook.remove()
        for part, training in modes.items():
            part.training = training
    if not isinstance(output, Tensor) or output.ndim != 2:
        raise ConfigError(f"The output of {name} is not a batch of logits [B, classes].")
    for key, logits in reversed(seen.items()):
        if torch.equal(logits, output):
            return key
    raise ConfigError(
        f"The output of {name} is not that of a linear layer: something follows "
        f"'{next(reversed(seen), 'it')}', such as a softmax.",
        hint=f"Remove what follows; the loss expects logits. Or: {_BUILD}",
    )


@torch.no_grad()
def _run(network: nn.Module, sizes: tuple[int, ...]) -> object:
    """The output for random images of the first size that the network takes."""
    like = next(network.parameters())
    random = torch.Generator().manual_seed(0)
    for size in sizes:
        images = torch.rand(IMAGES, 3, size, size, generator=random)
        try:
            return network(images.to(like))
        except (RuntimeError, ValueError, AssertionError, IndexError) as error:
            problem = one_line(error)
    tried = ", ".join(map(str, sizes))
    raise ConfigError(
        f"{type(network).__name__} cannot take images of {tried} pixels: {problem}.",
        hint="Give the side of its images, e.g. image_size=48.",
    )
