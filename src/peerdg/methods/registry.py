"""Find a method by name; torch is imported only when one is built."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from functools import cache
from typing import Any

from peerdg.errors import ConfigError
from peerdg.methods import settings
from peerdg.methods.metadata import MethodSettings, reconstructed_on
from peerdg.methods.plugins import Plugin
from peerdg.methods.recipes import COMBINATIONS, RECIPES
from peerdg.options import build, did_you_mean

_plugins: dict[str, Plugin] = {}  # by the name of their method; filled by `registered` only


@cache
def method_names() -> tuple[str, ...]:
    """Every method there is: one file under `methods/settings` each, `m_ada.py` for `m-ada`.

    Besides them, those of plugins that are `registered`.
    """
    modules = pkgutil.iter_modules(settings.__path__)
    return tuple(sorted([*(module.name.replace("_", "-") for module in modules), *_plugins]))


@contextmanager
def registered(plugin: Plugin) -> Iterator[None]:
    """Inside the block, the method of a plugin is known like any other.

    Raises:
        ConfigError: If a method or recipe has its name already.
    """
    if plugin.name in (*method_names(), *RECIPES, *COMBINATIONS):
        raise ConfigError(
            f"There is a method '{plugin.name}' already, so the plugin {plugin.path} cannot be "
            "one of this name.",
            hint="Rename the file: a method is named as its file.",
        )
    _plugins[plugin.name] = plugin
    method_names.cache_clear()
    try:
        yield
    finally:
        del _plugins[plugin.name]
        method_names.cache_clear()


def loaded_plugin() -> Plugin | None:
    """The plugin that is registered; None if there is none."""
    return next(iter(_plugins.values()), None)


def plugin_of(name: str) -> Plugin | None:
    """The plugin whose method has this name; None for methods of the package."""
    return _plugins.get(name)


def settings_of(name: str) -> type[MethodSettings]:
    """The dataclass of a method's options.

    Raises:
        ConfigError: If there is no such method, with the nearest name.
    """
    kind: type[MethodSettings] = _module(name).Settings
    return kind


def stored_settings(name: str, values: Mapping[str, Any]) -> MethodSettings | None:
    """The settings of a run that another version may have made; unknown options are left out.

    Returns:
        None if this version does not have the method, or refuses a value.
    """
    if name not in method_names():
        return None
    kind = settings_of(name)
    known = {f.name for f in fields(kind)}
    try:
        return build(kind, {k: v for k, v in values.items() if k in known}, where=name)
    except ConfigError:
        return None


def known_as(name: str, values: Mapping[str, Any]) -> str:
    """What the literature calls a method with these options; usually its own name."""
    names = getattr(_module(name), "KNOWN_AS", {}) if name in method_names() else {}
    for called, options in names.items():
        if all(values.get(key) == value for key, value in options.items()):
            return str(called)
    return name


def title_of(name: str) -> str:
    """A method's name as it is written in a sentence."""
    return str(getattr(_module(name), "TITLE", name)) if name in method_names() else name


def aliases_of(name: str) -> dict[str, str]:
    """What people type for the options of a method, {"weight": "w"}."""
    return dict(getattr(_module(name), "ALIASES", {}))


def model_options_of(name: str) -> tuple[str, ...]:
    """The options of a method that name a trained network."""
    known = fields(settings_of(name)) if name in method_names() else ()
    return tuple(f.name for f in known if f.metadata.get("names_model"))


def tiny_options_of(name: str) -> dict[str, Any]:
    """Options of a method for a run of a few seconds."""
    return dict(getattr(_module(name), "TINY", {}))


def is_reconstruction(name: str, data: str) -> bool:
    """Whether no published code or paper specifies the method or recipe for this data set.

    A recipe is one if it or its objective is, and so is a combination of runs. Methods of other
    versions or plugins are none.
    """
    if name in COMBINATIONS:
        combination = COMBINATIONS[name]
        own = reconstructed_on(combination.reconstruction, data)
        return own or is_reconstruction(combination.member, data)
    if name in RECIPES:
        recipe = RECIPES[name]
        own = reconstructed_on(recipe.reconstruction, data)
        return own or is_reconstruction(recipe.method, data)
    return name in method_names() and reconstructed_on(settings_of(name).reconstruction, data)


def own_augment_of(name: str) -> str | None:
    """The kind of augmentation that a method or recipe stands for; None if it is not known here."""
    if name in RECIPES:
        recipe = RECIPES[name]
        return recipe.options.get("augment", {}).get("kind") or own_augment_of(recipe.method)
    return settings_of(name).own_augment if name in method_names() else None


def implementation_of(name: str) -> type[Any]:
    """The class that implements a method."""
    if plugin := plugin_of(name):
        return plugin.implementation
    module, _, attribute = _module(name).IMPLEMENTED_BY.partition(":")
    kind: type[Any] = getattr(importlib.import_module(module), attribute)
    return kind


def summary_of(name: str) -> str:
    """One line about a method."""
    return (inspect.getdoc(settings_of(name)) or "").splitlines()[0]


def _module(name: str) -> Any:
    if name not in method_names():
        known = (*method_names(), *RECIPES, *COMBINATIONS)
        raise ConfigError(f"Unknown method '{name}'.", hint=did_you_mean(name, known))
    if plugin := plugin_of(name):
        return plugin.module
    return importlib.import_module(f"{settings.__name__}.{name.replace('-', '_')}")
