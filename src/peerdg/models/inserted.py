"""Put layers at places inside an encoder, without a change to the encoder itself."""

import copy
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from peerdg.models.added import AddedLayer
from peerdg.models.meta_features import MetaFeatures
from peerdg.models.style_mixing import StyleMixing

_SHARED = ("_parameters", "_buffers")  # so that both copies always have the same values


def make_layer(layer: AddedLayer) -> nn.Module:
    """The module that stands inside the encoder, with fresh weights."""
    if layer.kind == "style-mixing":
        return StyleMixing(
            channel=_given(layer.channel), p=_given(layer.p), alpha=_given(layer.alpha)
        )
    return MetaFeatures(
        layer.inputs,
        atoms=_given(layer.atoms),
        addressed=_given(layer.addressed),
        ridge=_given(layer.ridge),
        threshold=_given(layer.threshold),
        channel=_given(layer.channel),
        gradient=_given(layer.gradient),
    )


def _given(value: Any) -> Any:
    assert value is not None  # noqa: S101  (narrows the type; AddedLayer has checked it)
    return value


def insert(encoder: nn.Module, layers: Iterable[tuple[AddedLayer, nn.Module]]) -> nn.Module:
    """An encoder with layers behind or in front of some of its modules.

    The result has modules of its own, but the same parameters and buffers: `encoder` stays as it
    is, and training one of them trains both. The layers are called by forward hooks, so names of
    weights do not change; they are no submodules of the result.

    Args:
        encoder: The network.
        layers: What to insert, and the modules that do it.

    Raises:
        ValueError: If the encoder has no module of a given name.
    """
    was_compiled = encoder._compiled_call_impl is not None
    twin = _with_shared_weights(encoder, {})
    modules = dict(twin.named_modules())
    for layer, module in layers:
        side, name = layer.neighbour
        if name not in modules:
            raise ValueError(f"the network has no module '{name}' for its {layer.kind}")
        # torch.compile does not look at hooks where it has code for a module already, but at types.
        kind = type(modules[name])
        modules[name].__class__ = type(kind.__name__, (kind,), {"__module__": kind.__module__})
        calls = _Insertion(module)
        if side == "after":
            modules[name].register_forward_hook(calls.after)
        else:
            modules[name].register_forward_pre_hook(calls.before)
    if was_compiled:
        twin.compile()
    return twin


class Body(nn.Module):
    """An encoder together with the layers that its hooks call, and one behind it.

    Args:
        encoder: What `insert` gave.
        inside: The layers, so that they are part of the weights, the mode and the device.
        neck: What follows the encoder, if anything does.
    """

    def __init__(self, encoder: nn.Module, inside: nn.ModuleList, neck: nn.Module | None) -> None:
        super().__init__()
        self.encoder = encoder
        self.inside = inside
        self.neck = neck

    def forward(self, images: Tensor) -> Tensor:
        """H(x)."""
        features: Tensor = self.encoder(images)
        return features if self.neck is None else self.neck(features)


class _Insertion:
    """Hooks that call a layer; as methods, they are copied together with it."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer

    def after(self, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        result: Tensor = self.layer(output)
        return result

    def before(self, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        return self.layer(inputs[0]), *inputs[1:]


def _with_shared_weights(module: nn.Module, made: dict[int, nn.Module]) -> nn.Module:
    """A copy of a module and those in it, which holds the same parameters and buffers."""
    if id(module) in made:
        return made[id(module)]
    twin: nn.Module = object.__new__(type(module))
    made[id(module)] = twin
    # Hooks and children are kept in dictionaries, of which each copy needs its own.
    twin.__dict__.update(
        (name, copy.copy(value) if isinstance(value, dict) and name not in _SHARED else value)
        for name, value in module.__dict__.items()
    )
    twin.__dict__.pop("_compiled_call_impl", None)  # it would call the original
    for name, child in module._modules.items():
        twin._modules[name] = None if child is None else _with_shared_weights(child, made)
    return twin
