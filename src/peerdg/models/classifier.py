"""Define the classifier: an encoder H, a linear head C, normalization and class names."""

import copy
import hashlib
import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from peerdg.distributed import encode
from peerdg.errors import ConfigError, DataError, PeerdgWarning
from peerdg.models.layers import FEATURES, GaussianBottleneck, Layer, insert, make_layer
from peerdg.models.names import MEAN_LIMITS, STD_LIMITS
from peerdg.options import check_limits
from peerdg.terminal import one_line


class Classifier(nn.Module):
    """A network F = C∘H with its normalization and class names.

    It takes uint8 images, or floating point in [0, 1], and normalizes them. Augmentation thus
    always happens before normalization, and a saved model gets correctly scaled images.

    Args:
        encoder: H, maps normalized images `[B, 3, H, W]` to features `[B, D]`.
        head: C, maps features `[B, D]` to logits `[B, classes]`.
        classes: Class names in the order of the logits, or their number (3 for 0, 1, 2).
        mean: Per-channel mean to subtract, on the scale 0..1.
        std: Per-channel scale to divide by.
        image_size: Required side of the images in pixels. None accepts any size.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        encoder: nn.Module,
        head: nn.Linear,
        *,
        classes: Sequence[str] | int,
        mean: Sequence[float] = (0.0, 0.0, 0.0),
        std: Sequence[float] = (1.0, 1.0, 1.0),
        image_size: int | None = None,
    ) -> None:
        super().__init__()
        classes = tuple(map(str, range(classes))) if isinstance(classes, int) else classes
        if head.out_features != len(classes):
            raise ConfigError(
                f"The head has {head.out_features} outputs, but there are {len(classes)} classes.",
                hint=f"Use nn.Linear({head.in_features}, {len(classes)}).",
            )
        if len(set(classes)) != len(classes):
            raise ConfigError(f"Class names must be unique: {', '.join(classes)}.")
        check_limits(tuple(mean), MEAN_LIMITS, "mean")
        check_limits(tuple(std), STD_LIMITS, "std")
        self.encoder = encoder
        self.neck: GaussianBottleneck | None = None
        self.added: tuple[Layer, ...] = ()
        self.head = head
        self.classes = tuple(classes)
        self.image_size = image_size
        self.last_layer = ""  # name of the head in the network that `from_module` copied
        # Not persistent, because model.json stores them next to the weights.
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1), persistent=False)
        self._normalize = any(mean) or any(s != 1 for s in std)

    @classmethod
    def from_module(
        cls,
        module: nn.Module,
        *,
        classes: Sequence[str] | int,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        image_size: int | None = None,
    ) -> "Classifier":
        """Build a classifier from a copy of any network that ends with a linear layer.

        The last layer becomes the head, the rest becomes the encoder. Nothing may follow the layer,
        not even a softmax. This is checked with a forward pass of a few random images.

        Pre-trained weights expect images normalized as in their training. A warning is issued if
        `mean` and `std` are missing and a batch-normalization layer seems to be trained. Pass
        `mean=(0.0, 0.0, 0.0)` if the network expects images in [0, 1].

        Args:
            module: Network that maps images `[B, 3, H, W]` to logits.
            classes: Class names in the order of the logits, or their number.
            mean: Per-channel mean to subtract, on the scale 0..1. Defaults to 0.
            std: Per-channel scale to divide by. Defaults to 1.
            image_size: Side of the network's images, if it is not one of the usual sizes.

        Raises:
            ConfigError: If the network does not end with a linear layer.
        """
        if mean is None and std is None and _has_trained_statistics(module):
            warnings.warn(
                f"{type(module).__name__} seems to be trained, but mean and std are missing, so "
                "it will get images in [0, 1]. ImageNet weights expect "
                "mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225). Pass "
                "mean=(0.0, 0.0, 0.0) if yours were trained on images in [0, 1].",
                PeerdgWarning,
                stacklevel=2,
            )
        encoder = copy.deepcopy(module)
        name = find_last_layer(encoder, image_size)
        head = encoder.get_submodule(name)
        encoder.set_submodule(name, nn.Identity())
        assert isinstance(head, nn.Linear)  # noqa: S101  (narrows the type)
        mean, std = mean or (0.0, 0.0, 0.0), std or (1.0, 1.0, 1.0)
        model = cls(encoder, head, classes=classes, mean=mean, std=std)
        model.last_layer = name
        return model

    def network_state_dict(self, last_layer: str = "") -> dict[str, Tensor]:
        """Return the weights with the names of the network that `from_module` copied.

        `network.load_state_dict(model.network_state_dict())` loads them into that network. Pass the
        name of its last layer if the classifier was not made by `from_module`.
        """
        last_layer = last_layer or self.last_layer
        if self.added or not last_layer:
            raise ConfigError(
                "This classifier is not a copy of one network, so it cannot be converted back.",
                hint="Use state_dict(), or make it with Classifier.from_module(network, ...).",
            )
        places = {"encoder": "", "head": f"{last_layer}."}
        tensors = ((name.split(".", 1), value) for name, value in self.state_dict().items())
        return {f"{places[part]}{name}": value for (part, name), value in tensors}

    @property
    def feature_dim(self) -> int:
        return self.head.in_features

    @property
    def encoder_dim(self) -> int:
        """Width of the encoder's output. Equals `feature_dim` unless a bottleneck follows."""
        return self.feature_dim if self.neck is None else self.neck.mean.in_features

    @property
    def body(self) -> nn.Module:
        """The module that maps normalized images to features H(x)."""
        return self.encoder if self.neck is None else nn.Sequential(self.encoder, self.neck)

    def with_layers(self, layers: Sequence[Layer]) -> "Classifier":
        """Return a copy of the network with freshly initialized layers added.

        A layer between encoder and head also replaces the head. If the network already has these
        layers, it is returned unchanged.
        """
        layers = tuple(dict(layer) for layer in layers)
        if self.added == layers:
            return self
        if self.added:
            raise ConfigError(
                "This network already has different added layers.",
                hint="Start from the network without added layers.",
            )
        adapted = copy.deepcopy(self)
        adapted.added = layers
        for layer in layers:
            module = make_layer(layer)
            if layer["place"] != FEATURES:
                insert(adapted.encoder, layer["place"], module)
                continue
            del adapted.head  # re-added below to keep the modules in forward order
            adapted.neck = module
            adapted.head = nn.Linear(layer["outputs"], len(self.classes))
        if self.encoder._compiled_call_impl is not None:  # copies are not compiled
            adapted.encoder.compile()
        return adapted.to(self.head.weight).train(self.training)

    def features(self, images: Tensor) -> Float[Tensor, "batch dim"]:
        """Return H(x) for images in uint8 or [0, 1]."""
        features = encode(self.encoder, self.prepare(images))
        return features if self.neck is None else self.neck(features)

    def forward(self, images: Tensor) -> Float[Tensor, "batch classes"]:
        logits: Tensor = self.head(self.features(images))
        return logits

    def prepare(self, images: Tensor) -> Float[Tensor, "batch 3 h w"]:
        """Normalize images and convert them to the encoder's type."""
        size, dtype = self.image_size, self.head.weight.dtype
        if size is not None and images.shape[-2:] != (size, size):
            raise DataError(
                f"This network expects images of {size} x {size} pixels, "
                f"got {images.shape[-2]} x {images.shape[-1]}.",
                hint=f"Resize the images to {size} pixels or choose another --backbone.",
            )
        if images.dtype == torch.uint8:
            images = images.contiguous(memory_format=torch.channels_last).to(dtype).div_(255)
        images = images.to(dtype)
        return (images - self.mean) / self.std if self._normalize else images


def require_classifier(network: object) -> None:
    """Raise if a network is not a `Classifier`, with a hint on how to wrap it."""
    if not isinstance(network, Classifier):
        raise ConfigError(
            f"The network is a {type(network).__name__}, not a peerdg.Classifier.",
            hint="Wrap it: Classifier.from_module(network, classes=...).",
        )


def as_classifier(
    network: object,
    *,
    classes: Sequence[str],
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    image_size: int,
) -> Classifier:
    """Wrap a user's network with `Classifier.from_module`, unless it is a `Classifier`."""
    if isinstance(network, Classifier):
        return network
    if not isinstance(network, nn.Module):
        raise ConfigError(
            f"Expected a network, got a {type(network).__name__}.",
            hint="Pass a torch.nn.Module, or name a network with backbone='resnet18'.",
        )
    return Classifier.from_module(
        network, classes=classes, mean=mean, std=std, image_size=image_size
    )


def _has_trained_statistics(module: nn.Module) -> bool:
    """Return whether a batch-normalization layer no longer has its initial statistics."""
    buffers = dict(module.named_buffers())
    means = (value for name, value in buffers.items() if name.endswith("running_mean"))
    variances = (value for name, value in buffers.items() if name.endswith("running_var"))
    return any(mean.any() for mean in means) or any((var != 1).any() for var in variances)


def has_batch_statistics(module: nn.Module) -> bool:
    """Return whether the network has batch-normalization layers."""
    return any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules())


@contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Put a network in eval mode inside the block and restore each module's mode afterwards."""
    modes = {part: part.training for part in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for part, training in modes.items():
            part.training = training


def images_per_pass(side: int) -> int:
    """Return the batch size for passes without gradients on images of this side.

    With larger batches the activations no longer fit into a CPU's cache and each image takes
    longer. Above 256 x 256 pixels the batch shrinks to bound the memory.
    """
    return 256 if side <= 64 else max(1, min(32, 32 * 256**2 // side**2))


SIZES = (32, 224, 64, 128, 28, 96, 256, 299, 384)  # tried if the image size is unknown
_BUILD = "Build peerdg.Classifier(encoder, head, classes=...) from its two parts."


def find_last_layer(network: nn.Module, image_size: int | None) -> str:
    """Return the name of the linear layer whose output is the network's output.

    The network is not changed. If no image size is given, the usual sizes are tried.

    Raises:
        ConfigError: If there is no such layer, another module follows it, or the network fails.
    """
    name = type(network).__name__
    layers: dict[nn.Module, str] = {
        part: key
        for key, part in network.named_modules()
        if isinstance(part, nn.Linear) and part is not network  # a bare layer has no encoder
    }
    if not layers:
        raise ConfigError(f"{name} has no linear layer after its features.", hint=_BUILD)
    outputs: dict[str, Tensor] = {}

    def record(layer: nn.Module, _: object, output: Tensor) -> None:
        outputs[layers[layer]] = output.clone()  # a following ReLU may work in place

    with ExitStack() as stack, in_eval_mode(network):
        for layer in layers:
            stack.callback(layer.register_forward_hook(record).remove)
        output = _run(network, (image_size,) if image_size else SIZES)
    if not isinstance(output, Tensor) or output.ndim != 2:
        raise ConfigError(f"The output of {name} is not a batch of logits [B, classes].")
    for key, logits in reversed(outputs.items()):
        if torch.equal(logits, output):
            return key
    raise ConfigError(
        f"The output of {name} does not come from a linear layer: something follows "
        f"'{next(reversed(outputs), 'it')}', such as a softmax.",
        hint=f"Remove it, because the loss expects logits. Or: {_BUILD}",
    )


@torch.no_grad()
def _run(network: nn.Module, sizes: tuple[int, ...]) -> object:
    """Run the network on random images of the first size that it accepts."""
    like = next(network.parameters())
    random = torch.Generator().manual_seed(0)
    for size in sizes:
        # Use several images. With only one, all logits could be positive by chance, which would
        # hide a final ReLU.
        images = torch.rand(4, 3, size, size, generator=random)
        try:
            return network(images.to(like))
        except (RuntimeError, ValueError, AssertionError, IndexError) as error:
            problem = one_line(error)
    tried = ", ".join(map(str, sizes))
    raise ConfigError(
        f"{type(network).__name__} fails on square images with these side lengths: {tried}. "
        f"Last error: {problem}.",
        hint="Pass the side of its images, e.g. image_size=48.",
    )


def network_fingerprint(network: nn.Module) -> tuple[str, str]:
    """Return hashes of the network's structure and of its values.

    The first covers the `repr`, and the name, type, `requires_grad` and shape of each parameter and
    buffer. The second covers all values.
    """
    text = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(network))  # drop memory addresses
    structure = hashlib.sha256(text.encode())
    values = hashlib.sha256()
    for name, tensor in chain(network.named_parameters(), network.named_buffers()):
        # A lazy parameter has neither shape nor values yet.
        shape = "lazy" if is_lazy(tensor) else tuple(tensor.shape)
        structure.update(f"\n{name} {tensor.dtype} {tensor.requires_grad} {shape}".encode())
        if not is_lazy(tensor):
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            values.update(flat.view(torch.uint8).numpy().tobytes())
    return structure.hexdigest()[:12], values.hexdigest()[:12]
