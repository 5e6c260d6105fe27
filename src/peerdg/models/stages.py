"""Stages of a network: their feature maps, and the places where a layer can be added."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from peerdg.errors import ConfigError
from peerdg.models.added import AddedLayer
from peerdg.models.classifier import Classifier, in_eval_mode
from peerdg.options import did_you_mean

OUTPUT = "."
"""Names the encoder itself: its features H(x)."""

TOKEN_GROUPS = 4  # of a transformer's blocks, like the four stages of a convolutional network


@dataclass(frozen=True)
class FeatureMap:
    """The output of a module.

    Args:
        name: The module inside the encoder, as `named_modules` calls it; `"."` is the encoder.
        shape: Of the output for one image.
        channel: Which dimension of `shape` holds the channels.
    """

    name: str
    shape: tuple[int, ...]
    channel: int

    @property
    def channels(self) -> int:
        """Number of channels."""
        return self.shape[self.channel]

    @property
    def broadcast_shape(self) -> tuple[int, ...]:
        """Shape of one value per channel that broadcasts over a batch of these maps."""
        sides = (size if place == self.channel else 1 for place, size in enumerate(self.shape))
        return 1, *sides


def find_stages(model: Classifier, size: int) -> list[FeatureMap]:
    """The output of each stage of a network, found by watching a forward pass.

    - The last map of each resolution above 1 x 1, `[B, C, H, W]` or `[B, H, W, C]`, and not behind
      dropout. Of ResNet these are `relu` (stem) and `layer1` to `layer4`, of RegNet `stem` and
      `trunk_output.block1` to `block4`: what timm's `feature_info` lists too. Of the Digits network
      they are `conv1` and `conv2`; of AlexNet and CaffeNet the map before each pooling and the one
      after the last; of SqueezeNet the map before each pooling and the last one.
    - Of a transformer, the end of each quarter of its blocks: `encoder.layers.encoder_layer_2`,
      `_5`, `_8` and `_11` of ViT-B/16, besides its `conv_proj`.
    - H(x) itself, if layers with parameters follow the last of these: fully connected ones, or the
      layer norm of a transformer. The features of a ResNet are only the mean of its last map. Not
      behind dropout: those of AlexNet and CaffeNet are random in training, and differ from those of
      the same network in eval mode.

    Args:
        model: The network; left as it is.
        size: Side of the images it is shown.
    """
    calls = watch_pass(model, size)
    ends = {*_last_of_each_resolution(calls), *_last_of_each_quarter(calls)}
    names = [name for name in calls if name in ends]
    if not names or (_learns_after(names[-1], calls) and not _drops_after(names[-1], calls)):
        names.append(OUTPUT)
    return [as_map(name, calls[name].output) for name in names]


def named_maps(model: Classifier, size: int, names: Sequence[str]) -> list[FeatureMap]:
    """The outputs of the modules called `names`, in this order.

    Raises:
        ConfigError: If the encoder has no such module, or it does not give one tensor per pass.
    """
    calls = watch_pass(model, size)
    modules = [OUTPUT, *(name for name, _ in model.encoder.named_modules() if name)]
    for name in names:
        if name not in modules:
            raise ConfigError(
                f"The network has no module '{name}'.", hint=did_you_mean(name, modules)
            )
        if name not in calls:
            raise ConfigError(
                f"The module '{name}' does not give one tensor in each pass.",
                hint=f"Some that do: {', '.join(list(calls)[:8])}.",
            )
    if doubled := [name for name, count in Counter(names).items() if count > 1]:
        raise ConfigError(f"The module '{doubled[0]}' is named twice.")
    return [as_map(name, calls[name].output) for name in names]


@contextmanager
def recorded(model: Classifier, names: Sequence[str]) -> Iterator[dict[str, list[Tensor]]]:
    """Inside the block, collect the outputs of the named modules, one tensor per pass.

    The hooks are gone afterwards, so that copies of the network do not have them. A compiled
    encoder would ignore them: inside the block it runs as if it were not compiled.
    """
    outputs: dict[str, list[Tensor]] = {name: [] for name in names}
    with ExitStack() as stack:
        for name, collected in outputs.items():
            module = _module(model, name)
            hook = module.register_forward_hook(_append_to(collected))
            stack.callback(hook.remove)
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield outputs


_Hook = Callable[[nn.Module, tuple[object, ...], Any], None]


def _append_to(collected: list[Tensor]) -> _Hook:
    def hook(module: nn.Module, inputs: tuple[object, ...], output: Tensor) -> None:
        collected.append(output.clone())  # the next layer may change it in place

    return hook


def _module(model: Classifier, name: str) -> nn.Module:
    return model.encoder if name == OUTPUT else model.encoder.get_submodule(name)


@dataclass(frozen=True)
class Call:
    """A module that gave one tensor in a pass: its shape, and that of what the module was given."""

    module: nn.Module
    given: tuple[int, ...] | None
    output: tuple[int, ...]


Calls = dict[str, Call]
"""By name, in the order in which the modules ended."""


@torch.no_grad()
def watch_pass(model: Classifier, size: int) -> Calls:
    """What each module that gives one tensor in a pass does with one black image."""
    names = [OUTPUT, *(name for name, _ in model.encoder.named_modules() if name)]
    ended: list[tuple[str, Call | None]] = []
    device = model.head.weight.device
    with ExitStack() as stack:
        for name in names:
            hook = _module(model, name).register_forward_hook(_note_call(name, ended))
            stack.callback(hook.remove)
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(in_eval_mode(model))
        model.features(torch.zeros(1, 3, size, size, dtype=torch.uint8, device=device))
    count = Counter(name for name, _ in ended)
    return {name: call for name, call in ended if call is not None and count[name] == 1}


def _note_call(name: str, ended: list[tuple[str, Call | None]]) -> _Hook:
    def hook(module: nn.Module, inputs: tuple[object, ...], output: object) -> None:
        first = inputs[0] if inputs else None
        given = tuple(first.shape) if isinstance(first, Tensor) else None
        call = None
        if isinstance(output, Tensor) and output.ndim in (2, 3, 4):
            call = Call(module, given, tuple(output.shape))
        ended.append((name, call))

    return hook


def _last_of_each_resolution(calls: Calls) -> list[str]:
    last: dict[int, str] = {}
    for name, call in calls.items():
        side = side_of(call.output)
        is_dropout = isinstance(call.module, nn.modules.dropout._DropoutNd)
        if side > 1 and name != OUTPUT and not is_dropout and not _is_inside_block(name, calls):
            last[side] = name
    return list(last.values())


def _last_of_each_quarter(calls: Calls) -> list[str]:
    """The last module of each quarter of the largest group of like modules that output tokens."""
    groups: dict[tuple[str, type[nn.Module]], list[str]] = {}
    for name, call in calls.items():
        if name != OUTPUT and len(call.output) == 3 and not _is_inside_block(name, calls):
            parent = name.rpartition(".")[0]
            groups.setdefault((parent, type(call.module)), []).append(name)
    if not groups:
        return []
    blocks = max(groups.values(), key=lambda group: (len(group), -group[0].count(".")))
    quarters = min(TOKEN_GROUPS, len(blocks))
    return [blocks[len(blocks) * (n + 1) // quarters - 1] for n in range(quarters)]


def _is_inside_block(name: str, calls: Calls) -> bool:
    """Whether an output only prepares that of an enclosing module, which makes a map of a map.

    So is the first map of a bottleneck that halves the resolution: it still has that of the stage
    before, without being its end. A sequence is no block, and neither is a module that holds
    several stages: what has a resolution between those of its input and output may end one.
    """
    side = side_of(calls[name].output)
    parts = name.split(".")
    for depth in range(1, len(parts)):
        block = calls.get(".".join(parts[:depth]))
        if block is None or block.given is None or isinstance(block.module, nn.Sequential):
            continue
        before, after = side_of(block.given), side_of(block.output)
        if before and after and side != after and not after < side < before:
            return True
    return False


def _learns_after(name: str, calls: Calls) -> bool:
    """Whether a layer with parameters follows the module called `name`."""
    return any(True for layer in _layers_after(name, calls) for _ in layer.parameters())


def _drops_after(name: str, calls: Calls) -> bool:
    """Whether dropout follows the module called `name`."""
    dropout = nn.modules.dropout._DropoutNd
    return any(isinstance(each, dropout) and each.p > 0 for each in _layers_after(name, calls))


def _layers_after(name: str, calls: Calls) -> list[nn.Module]:
    later = list(calls)[list(calls).index(name) + 1 :]
    return [calls[other].module for other in later if not any(calls[other].module.children())]


def side_of(shape: tuple[int, ...]) -> int:
    """The side of a square map in either layout; 0 if it is none."""
    if len(shape) != 4:
        return 0
    _, a, b, c = shape
    return b if b == c or a == b else 0


def as_map(name: str, output: tuple[int, ...]) -> FeatureMap:
    """The map of a batch of outputs, with its channels found by its shape."""
    shape = output[1:]
    is_last = len(shape) == 2 or (len(shape) == 3 and shape[0] == shape[1] != shape[2])
    return FeatureMap(name, shape, channel=len(shape) - 1 if is_last else 0)


Places = dict[str, FeatureMap]
"""What passes at each place, by the name of the place as `AddedLayer` has it."""


def stage_places(model: Classifier, size: int) -> Places:
    """The end of each stage of a network, in their order: what the next stage is given.

    Stages are those of `find_stages`, each with the pooling that follows it. The stem of a network
    whose stages are blocks of several layers is none. So the first two places are

    - `after layer1`, `after layer2` of a ResNet, and the first two blocks of a RegNet;
    - `after features.2`, `after features.5` of AlexNet: its first two poolings, as in CaffeNet;
    - `after features.5`, `after features.8` of SqueezeNet: the two poolings behind fire modules;
    - `before conv2` of the Digits network, whose pooling is no module, and `after conv2`;
    - behind the first and the second quarter of a transformer's blocks.

    Args:
        model: The network; left as it is.
        size: Side of the images it is shown.
    """
    calls = watch_pass(model, size)
    stages = [each.name for each in find_stages(model, size) if each.name != OUTPUT]
    if len(stages) > 1 and _layers(calls, stages[0]) < 2 <= _layers(calls, stages[1]):
        stages = stages[1:]
    return dict(_behind(name, calls) for name in stages)


def named_places(model: Classifier, size: int, names: Sequence[str]) -> Places:
    """The places behind the modules called `names`.

    Raises:
        ConfigError: If the encoder has no such module, or it does not give one tensor per pass.
    """
    return {f"after {each.name}": each for each in named_maps(model, size, names)}


def choose_places(
    model: Classifier, size: int, *, names: Sequence[str] | None, stages: Sequence[int], option: str
) -> Places:
    """Places for a method's layers, where there are maps of more than one pixel.

    Args:
        model: The network; left as it is.
        size: Side of the images it is shown.
        names: Modules to stand behind; None takes stages.
        stages: Numbers of the stages, from 1; those that the network does not have are left out.
        option: The option that names modules, for messages.

    Raises:
        ConfigError: If there is no such place, or what passes there is no map.
    """
    if names is not None:
        chosen = named_places(model, size, names)
    else:
        found = list(stage_places(model, size).items())
        chosen = dict(found[number - 1] for number in stages if number <= len(found))
    chosen = {place: each for place, each in chosen.items() if names or _is_map(each)}
    for place, each in chosen.items():
        if not _is_map(each):
            shape = " x ".join(map(str, each.shape))
            raise ConfigError(
                f"What passes {place} ({shape}) is no map of more than one pixel.",
                hint=f"Name another module with {option}.",
            )
    if not chosen:
        raise ConfigError(
            "No stage of this network ends with a map that a layer could be added behind.",
            hint=f"Name a module with {option}.",
        )
    return chosen


def check_layers(model: Classifier, size: int) -> None:
    """Check that each layer inside the encoder receives the maps it was made for.

    Raises:
        ValueError: If a layer is never called, or the maps at its place are of another kind.
    """
    if not model.inside_layers:
        return
    calls = watch_pass(model, size)
    for layer in model.inside_layers:
        each = _map_at(layer, calls)
        if each is None or (each.channels, each.channel + 1) != (layer.inputs, layer.channel):
            raise ValueError(
                f"no maps of {layer.inputs} channels pass {layer.place}, where its {layer.kind} is"
            )


def _map_at(layer: AddedLayer, calls: Calls) -> FeatureMap | None:
    side, name = layer.neighbour
    call = calls.get(name)
    shape = None if call is None else call.output if side == "after" else call.given
    return as_map(name, shape) if shape is not None and len(shape) in (3, 4) else None


def _is_map(each: FeatureMap) -> bool:
    places = [size for place, size in enumerate(each.shape) if place != each.channel]
    return len(each.shape) in (2, 3) and max(places) > 1


def _layers(calls: Calls, name: str) -> int:
    """How many layers with weight matrices a module has."""
    parts = (part for part in calls[name].module.modules() if not any(part.children()))
    return sum(any(p.dim() > 1 for p in part.parameters()) for part in parts)


def _behind(name: str, calls: Calls) -> tuple[str, FeatureMap]:
    """The place at the end of the stage that the module `name` ends, behind pooling."""
    side, pooling = side_of(calls[name].output), name
    ended = list(calls)
    for other in ended[ended.index(name) + 1 :]:
        call = calls[other]
        if any(call.module.children()):  # it ends here, but has begun before
            continue
        if any(True for _ in call.module.parameters()):
            return _in_front_of(other, pooling, calls)
        if 1 < side_of(call.output) < side:
            side, pooling = side_of(call.output), other
    return f"after {pooling}", as_map(pooling, calls[pooling].output)


def _in_front_of(learning: str, last: str, calls: Calls) -> tuple[str, FeatureMap]:
    """The place behind `last`, unless a function that is no module pools before the next layer."""
    given = calls[learning].given
    behind = f"after {last}", as_map(last, calls[last].output)
    if given is None or not 1 < side_of(given) < side_of(calls[last].output):
        return behind
    parts = learning.split(".")
    for depth in range(1, len(parts) + 1):  # the outermost module that is given it: a whole block
        name = ".".join(parts[:depth])
        if name in calls and calls[name].given == given and not last.startswith(f"{name}."):
            return f"before {name}", as_map(name, given)
    return behind
