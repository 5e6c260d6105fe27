"""Find the stages of a network, their feature maps, and where to add layers."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from peerdg.errors import ConfigError
from peerdg.models.classifier import Classifier, in_eval_mode
from peerdg.models.layers import OUTPUT, eager, inserted, modules_of
from peerdg.options import did_you_mean

TOKEN_GROUPS = 4  # groups of transformer blocks, analogous to the four stages of a ResNet

# The last map of each resolution, by encoder class. H(x) is an additional stage if layers with
# weights follow the last map, unless dropout makes it random in training.
_STAGES = {
    "DigitsCNN": ("conv1", "conv2", OUTPUT),
    "AlexNet": ("features.1", "features.4", "features.11", "avgpool"),
    "CaffeNet": ("features.relu1", "features.relu2", "features.relu5", "features"),
    "SqueezeNet": ("features.1", "features.4", "features.7", "features"),
    "ResNet": ("relu", "layer1", "layer2", "layer3", "layer4"),
    "RegNet": ("stem", *(f"trunk_output.block{n}" for n in (1, 2, 3)), "trunk_output"),
    "VisionTransformer": (
        "conv_proj",
        *(f"encoder.layers.encoder_layer_{n}" for n in (2, 5, 8, 11)),
        OUTPUT,
    ),
}
# Where the next stage begins, for networks with pooling between the stages.
_PLACES = {
    "DigitsCNN": ("before conv2", "after conv2"),  # its pooling is not a module
    "AlexNet": ("after features.2", "after features.5", "after features.12", "after avgpool"),
    "CaffeNet": (*(f"after features.pool{n}" for n in (1, 2, 5)), "after features"),
    "SqueezeNet": ("after features.5", "after features.8", "after features"),
}


@dataclass(frozen=True)
class FeatureMap:
    """Name and shape of a module's output.

    Args:
        name: Name of the module in the encoder. `"."` is the encoder itself, with output H(x).
        shape: Shape of the output for one image.
        channel: Channel dimension in `shape`.
    """

    name: str
    shape: tuple[int, ...]
    channel: int

    @property
    def channels(self) -> int:
        return self.shape[self.channel]

    @property
    def broadcast_shape(self) -> tuple[int, ...]:
        """Shape in which one value per channel broadcasts over a batch of these maps."""
        sides = (size if place == self.channel else 1 for place, size in enumerate(self.shape))
        return 1, *sides

    @property
    def has_places(self) -> bool:
        """Whether the map has more than one pixel or token."""
        places = [size for place, size in enumerate(self.shape) if place != self.channel]
        return len(self.shape) in (2, 3) and max(places) > 1


Places = dict[str, FeatureMap]
"""Feature maps by place, see `models.layers.Layer`."""
Trace = dict[str, tuple[tuple[int, ...], tuple[int, ...]]]
"""Input and output shapes of each module in one pass."""


def find_stages(model: Classifier, size: int) -> list[FeatureMap]:
    """Return the output of each stage of a network for images of side `size`.

    `_STAGES` lists the stages of known backbones. For a timm network, they come from its
    `feature_info`, and a timm transformer has one for each quarter of its blocks. For any other
    network, they are the last map of each resolution among the encoder's children.
    """
    trace = trace_forward(model, size)
    return [_feature_map(name, trace[name][1]) for name in _stages(model.encoder, trace)]


def named_maps(model: Classifier, size: int, names: Sequence[str]) -> list[FeatureMap]:
    """Return the outputs of the named modules, in the given order.

    Raises:
        ConfigError: If a module is missing or does not return one tensor per pass.
    """
    trace = trace_forward(model, size)
    modules = modules_of(model.encoder)
    for name in names:
        if name not in modules:
            raise ConfigError(
                f"The network has no module '{name}'.", hint=did_you_mean(name, modules)
            )
        if name not in trace:
            raise ConfigError(
                f"The module '{name}' does not return one tensor per pass.",
                hint=f"Choose another, e.g. {', '.join(list(trace)[:8])}.",
            )
    if len(set(names)) < len(names):
        raise ConfigError(f"Module names must be unique: {', '.join(names)}.")
    return [_feature_map(name, trace[name][1]) for name in names]


def stage_places(model: Classifier, size: int) -> Places:
    """Return the end of each stage of a network in order, that is, the input of the next stage.

    The stem does not count if the stages are blocks of several layers. The first places are thus
    after `layer1` and `layer2` of a ResNet, and after the first two groups of a transformer's
    blocks. `_PLACES` lists networks with pooling between their stages.
    """
    trace = trace_forward(model, size)
    names = _PLACES.get(type(model.encoder).__name__)
    if names is None:
        stages = [name for name in _stages(model.encoder, trace) if name != OUTPUT]
        layers = [_layers(model.encoder.get_submodule(name)) for name in stages[:2]]
        has_stem = len(layers) == 2 and layers[0] < 2 <= layers[1]
        names = tuple(f"after {name}" for name in stages[has_stem:])
    places = {}
    for place in names:
        side, _, name = place.partition(" ")
        places[place] = _feature_map(name, trace[name][side == "after"])
    return places


def choose_places(
    model: Classifier, size: int, *, names: Sequence[str] | None, stages: Sequence[int], option: str
) -> Places:
    """Choose where to insert a method's layers. The maps must have more than one pixel.

    Layers go after the modules in `names`, or by default at the end of `stages`, counted from 1.
    Missing stages are skipped. `option` is the command-line option for `names`.
    """
    if names is None:
        available = list(stage_places(model, size).items())
        chosen = dict(available[number - 1] for number in stages if number <= len(available))
        chosen = {place: each for place, each in chosen.items() if each.has_places}
    else:
        chosen = {f"after {each.name}": each for each in named_maps(model, size, names)}
    if not chosen or not all(each.has_places for each in chosen.values()):
        where = "any stage of this network" if names is None else ", ".join(names)
        raise ConfigError(
            f"Cannot add a layer after {where}: it needs a map of more than one pixel.",
            hint=f"Name another module with {option}.",
        )
    return chosen


@contextmanager
def recorded(model: Classifier, names: Sequence[str]) -> Iterator[dict[str, list[Tensor]]]:
    """Record the outputs of the named modules inside the block, one tensor per pass."""
    outputs: dict[str, list[Tensor]] = {name: [] for name in names}

    def collect(name: str, output: Tensor) -> Tensor:
        outputs[name].append(output.clone())  # the next layer may change it in place
        return output

    layers = [(f"after {name}", lambda output, name=name: collect(name, output)) for name in names]
    with inserted(model.encoder, layers):
        yield outputs


@torch.no_grad()
def trace_forward(model: Classifier, size: int) -> Trace:
    """Trace the modules that return one tensor, in call order, for one black image.

    The network is not changed.
    """
    calls: list[tuple[str, tuple[object, ...], object]] = []
    with ExitStack() as stack, eager(model.encoder), in_eval_mode(model):
        for name, module in modules_of(model.encoder).items():
            hook = module.register_forward_hook(
                lambda module, inputs, output, name=name: calls.append((name, inputs, output))
            )
            stack.callback(hook.remove)
        device = model.head.weight.device
        model.features(torch.zeros(1, 3, size, size, dtype=torch.uint8, device=device))
    times = Counter(name for name, _, _ in calls)
    trace = {}
    for name, inputs, output in calls:
        if times[name] == 1 and isinstance(output, Tensor) and output.ndim in (2, 3, 4):
            first = inputs[0] if inputs else None
            input_shape = tuple(first.shape) if isinstance(first, Tensor) else ()
            trace[name] = (input_shape, tuple(output.shape))
    return trace


def _stages(encoder: nn.Module, trace: Trace) -> list[str]:
    known = _STAGES.get(type(encoder).__name__, ())
    if known and all(name in trace for name in known):
        return list(known)
    if feature_info := getattr(encoder, "feature_info", None):  # a timm network
        names = [info["module"] for info in feature_info if info["module"] in trace]
        if all(len(trace[name][1]) == 3 for name in names):  # tokens
            groups = min(TOKEN_GROUPS, len(names))
            names = [names[len(names) * (n + 1) // groups - 1] for n in range(groups)]
    else:
        children = [name for name, _ in encoder.named_children() if name in trace]
        last = {_side(trace[name][1]): name for name in children}
        names = sorted((name for side, name in last.items() if side > 1), key=children.index)
    return names + [OUTPUT] * _output_is_stage(names, encoder, trace)


def _output_is_stage(names: list[str], encoder: nn.Module, trace: Trace) -> bool:
    """Return whether layers with weights but no dropout follow the last stage."""
    modules = list(trace)
    later = modules[modules.index(names[-1]) + 1 :] if names else modules
    layers = [encoder.get_submodule(name) for name in later if name != OUTPUT]
    dropout = any(isinstance(x, nn.modules.dropout._DropoutNd) and x.p > 0 for x in layers)
    weights = any(True for x in layers for _ in x.parameters(recurse=False))
    return not names or (weights and not dropout)


def _layers(module: nn.Module) -> int:
    """Return the number of layers with a weight matrix."""
    return sum(
        any(p.dim() > 1 for p in part.parameters(recurse=False)) for part in module.modules()
    )


def _side(shape: tuple[int, ...]) -> int:
    """Return the side of a square map in either layout, or 0 if the shape is not a map."""
    if len(shape) != 4:
        return 0
    _, a, b, c = shape
    return b if b == c or a == b else 0


def _feature_map(name: str, shape: tuple[int, ...]) -> FeatureMap:
    """Find the channel dimension from the shape of a batch of outputs."""
    shape = shape[1:]
    is_last = len(shape) == 2 or (len(shape) == 3 and shape[0] == shape[1] != shape[2])
    return FeatureMap(name, shape, channel=len(shape) - 1 if is_last else 0)
