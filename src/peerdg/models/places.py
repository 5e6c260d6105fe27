"""Places inside an encoder where a layer can be added, found by watching a forward pass."""

from collections.abc import Sequence

from peerdg.errors import ConfigError
from peerdg.models.added import AddedLayer
from peerdg.models.classifier import Classifier
from peerdg.models.feature_maps import (
    OUTPUT,
    Calls,
    FeatureMap,
    as_map,
    find_stages,
    named_maps,
    side_of,
    watch_pass,
)

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
