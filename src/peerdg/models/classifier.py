"""A classifier: an encoder H, a linear head C, and what it needs to read an image."""

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

from peerdg.errors import ConfigError, DataError, PeerdgWarning
from peerdg.models.layers import FEATURES, GaussianBottleneck, Layer, insert, make_layer
from peerdg.models.names import MEAN_LIMITS, STD_LIMITS
from peerdg.options import check_limits
from peerdg.terminal import one_line


class Classifier(nn.Module):
    """F = C∘H with the normalisation and class names that belong to it.

    It takes images as they are stored, uint8 or floating point in [0, 1], and normalises them
    itself, so augmentation always happens before normalisation and a saved model cannot be fed
    wrongly scaled images.

    Args:
        encoder: H, maps normalised images `[B, 3, H, W]` to features `[B, D]`.
        head: C, maps features `[B, D]` to logits `[B, classes]`.
        classes: Class names in the order of the logits.
        mean: Per-channel mean to subtract, on the scale 0..1.
        std: Per-channel scale to divide by.
        image_size: Side of the only images it takes; None if it takes any.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        encoder: nn.Module,
        head: nn.Linear,
        *,
        classes: Sequence[str],
        mean: Sequence[float] = (0.0, 0.0, 0.0),
        std: Sequence[float] = (1.0, 1.0, 1.0),
        image_size: int | None = None,
    ) -> None:
        super().__init__()
        if head.out_features != len(classes):
            raise ConfigError(
                f"The head has {head.out_features} outputs, but there are {len(classes)} classes.",
                hint=f"Give it {len(classes)}: nn.Linear({head.in_features}, {len(classes)}).",
            )
        if len(set(classes)) != len(classes):
            raise ConfigError(f"A class is named twice: {', '.join(classes)}.")
        check_limits(tuple(mean), MEAN_LIMITS, "mean")
        check_limits(tuple(std), STD_LIMITS, "std")
        self.encoder = encoder
        self.neck: GaussianBottleneck | None = None
        self.added: tuple[Layer, ...] = ()
        self.head = head
        self.classes = tuple(classes)
        self.image_size = image_size
        # Not persistent: they are configuration, stored as text beside the weights.
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1), persistent=False)
        self._normalise = any(mean) or any(s != 1 for s in std)

    @classmethod
    def from_module(
        cls,
        module: nn.Module,
        *,
        classes: Sequence[str],
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        image_size: int | None = None,
    ) -> "Classifier":
        """Make a classifier of any network whose last linear layer gives the logits.

        The layer becomes the head; what feeds it becomes the encoder. Nothing may follow the layer,
        no softmax either: a few random images are shown to the network to make sure that the
        layer's output is the network's. The module is copied.

        Pre-trained weights expect images normalized as in their training. A warning is given if
        `mean` and `std` are left out and a batch-normalization layer of the network holds other
        statistics than a new one. `mean=(0.0, 0.0, 0.0)` says that images in [0, 1] are right.

        Args:
            module: Network from images `[B, 3, H, W]` to logits.
            classes: Class names in the order of the logits.
            mean: Per-channel mean to subtract, on the scale 0..1; default 0.
            std: Per-channel scale to divide by; default 1.
            image_size: Side of images it takes, if that is not one of the usual sizes.

        Raises:
            ConfigError: If no linear layer gives the network's output.
        """
        if mean is None and std is None and _has_learnt_statistics(module):
            warnings.warn(
                f"{type(module).__name__} seems to be trained, but neither mean nor std is given: "
                "it will see images in [0, 1]. Weights of ImageNet expect "
                "mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225). Give "
                "mean=(0.0, 0.0, 0.0) if yours were trained on images in [0, 1].",
                PeerdgWarning,
                stacklevel=2,
            )
        encoder = copy.deepcopy(module)
        name = find_last_layer(encoder, image_size)
        head = encoder.get_submodule(name)
        encoder.set_submodule(name, nn.Identity())
        assert isinstance(head, nn.Linear)  # noqa: S101  (narrows the type; found as a Linear above)
        mean, std = mean or (0.0, 0.0, 0.0), std or (1.0, 1.0, 1.0)
        return cls(encoder, head, classes=classes, mean=mean, std=std)

    @property
    def feature_dim(self) -> int:
        return self.head.in_features

    @property
    def encoder_dim(self) -> int:
        """Width of the encoder's output: D, unless a bottleneck follows it."""
        return self.feature_dim if self.neck is None else self.neck.mean.in_features

    @property
    def body(self) -> nn.Module:
        """Normalized images to features H(x), as one module."""
        return self.encoder if self.neck is None else nn.Sequential(self.encoder, self.neck)

    def with_layers(self, layers: Sequence[Layer]) -> "Classifier":
        """Return a copy of the network with layers added, which have fresh weights.

        A layer between encoder and head comes with a fresh head. A network that has these layers
        already is returned itself.
        """
        layers = tuple(dict(layer) for layer in layers)
        if self.added == layers:
            return self
        if self.added:
            raise ConfigError(
                "Another layer was added to this network already.",
                hint="Start from the network without it.",
            )
        adapted = copy.deepcopy(self)
        adapted.added = layers
        for layer in layers:
            module = make_layer(layer)
            if layer["place"] != FEATURES:
                insert(adapted.encoder, layer["place"], module)
                continue
            del adapted.head  # so that the order of the parts is that of the pass
            adapted.neck = module
            adapted.head = nn.Linear(layer["outputs"], len(self.classes))
        if self.encoder._compiled_call_impl is not None:  # copies are not compiled
            adapted.encoder.compile()
        return adapted.to(self.head.weight).train(self.training)

    def features(self, images: Tensor) -> Float[Tensor, "batch dim"]:
        """Return H(x) of uint8 or [0, 1] images."""
        features: Tensor = self.encoder(self.prepare(images))
        return features if self.neck is None else self.neck(features)

    def forward(self, images: Tensor) -> Float[Tensor, "batch classes"]:
        logits: Tensor = self.head(self.features(images))
        return logits

    def prepare(self, images: Tensor) -> Float[Tensor, "batch 3 h w"]:
        """Return images as the encoder takes them: in its type, normalized."""
        size, dtype = self.image_size, self.head.weight.dtype
        if size is not None and images.shape[-2:] != (size, size):
            raise DataError(
                f"This network takes images of {size} x {size} pixels only, "
                f"not {images.shape[-2]} x {images.shape[-1]}.",
                hint=f"Resize the images to {size} pixels, or choose another --backbone.",
            )
        if images.dtype == torch.uint8:
            images = images.contiguous(memory_format=torch.channels_last).to(dtype).div_(255)
        images = images.to(dtype)
        return (images - self.mean) / self.std if self._normalise else images


def as_classifier(
    network: object,
    *,
    classes: Sequence[str],
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    image_size: int,
) -> Classifier:
    """Make a classifier of a user's network, see `Classifier.from_module`.

    A `Classifier` stays as it is.
    """
    if isinstance(network, Classifier):
        return network
    if not isinstance(network, nn.Module):
        raise ConfigError(
            f"The model is a {type(network).__name__}, not a network.",
            hint="Give a torch.nn.Module, or name a network with backbone='resnet18'.",
        )
    return Classifier.from_module(
        network, classes=classes, mean=mean, std=std, image_size=image_size
    )


def _has_learnt_statistics(module: nn.Module) -> bool:
    """Whether a batch-normalization layer has seen images, by the statistics it holds."""
    buffers = dict(module.named_buffers())
    means = (value for name, value in buffers.items() if name.endswith("running_mean"))
    variances = (value for name, value in buffers.items() if name.endswith("running_var"))
    return any(mean.any() for mean in means) or any((var != 1).any() for var in variances)


def has_batch_statistics(module: nn.Module) -> bool:
    """Whether the output for one image depends on the other images of its batch in training."""
    return any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules())


@contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Put a network in eval mode inside the block; restore the mode of each module afterwards."""
    modes = {part: part.training for part in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for part, training in modes.items():
            part.training = training


def images_per_pass(side: int) -> int:
    """Images in one pass without gradients, for images of this side.

    With more of them the activations leave a CPU's cache, and each image takes longer. Above
    256 x 256, images are fewer as they get larger, so that the memory of a pass stays bounded.
    """
    return 256 if side <= 64 else max(1, min(32, 32 * 256**2 // side**2))


SIZES = (32, 224, 64, 128, 28, 96, 256, 299, 384)  # tried when the image size is not given
_BUILD = "Build peerdg.Classifier(encoder, head, classes=...) from its two parts."


def find_last_layer(network: nn.Module, image_size: int | None) -> str:
    """Return the name of the linear layer whose output is the network's output.

    The network is left as it is. Without an image size the usual ones are tried.

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

    with ExitStack() as stack, in_eval_mode(network):
        for layer in layers:
            stack.callback(layer.register_forward_hook(watch).remove)
        output = _run(network, (image_size,) if image_size else SIZES)
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
        # One image is too few: its logits may look alike before and after a ReLU.
        images = torch.rand(4, 3, size, size, generator=random)
        try:
            return network(images.to(like))
        except (RuntimeError, ValueError, AssertionError, IndexError) as error:
            problem = one_line(error)
    tried = ", ".join(map(str, sizes))
    raise ConfigError(
        f"{type(network).__name__} cannot take images of {tried} pixels: {problem}.",
        hint="Give the side of its images, e.g. image_size=48.",
    )


def network_fingerprint(network: nn.Module) -> tuple[str, str]:
    """Return two hashes: of what the network is, and of the values it starts from.

    The first is over its text and each parameter's and buffer's name, shape and type, and whether
    it is trained; the second over the values of all of them.
    """
    text = re.sub(r" at 0x[0-9a-fA-F]+", "", repr(network))  # without addresses of functions
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
