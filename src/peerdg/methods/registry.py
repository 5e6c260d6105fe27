"""Look up methods by name, both built-in methods and those from a plugin file.

Torch is imported only when the options of a method are needed. Loading a plugin executes it.
Only a file named on the command line or in a call of `peerdg.fit` is executed, never one named in a
run folder or a config file.
"""

import hashlib
import importlib
import inspect
import re
import sys
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from peerdg.errors import ConfigError
from peerdg.methods.recipes import COMBINATIONS, RECIPES, reconstructed_on
from peerdg.options import build, did_you_mean, nearest_path

if TYPE_CHECKING:
    from peerdg.methods.base import Method, MethodSettings

_NAMES = (
    "ada advst augmix barlow-twins erm l2d m-ada me-ada metacnn miro mixstyle pden peer "
    "randaugment randconv simde teacher"
)
METHODS = {name: f"peerdg.methods.{name.replace('-', '_')}" for name in _NAMES.split()}
"""Module of each method. A plugin's method is included while the plugin is `registered`."""

_HINT = "See docs/add-a-method.md for the required contents."


@dataclass(frozen=True)
class Plugin:
    """A loaded plugin."""

    name: str  # name of the method: the file name with hyphens instead of underscores
    path: Path
    sha256: str  # hash of the executed bytes
    module: ModuleType  # in `sys.modules` while the plugin is loaded

    @property
    def identity(self) -> str:
        """File name and hash, as stored in a run."""
        return f"{self.path.name} sha256:{self.sha256}"

    def failed_in(self, error: BaseException) -> bool:
        """Return whether the traceback of an error includes the plugin."""
        return bool(_line(error, self.path))


_plugins: dict[str, Plugin] = {}  # by method name, filled by `registered` only


def method_names() -> tuple[str, ...]:
    """Return the names of all methods, including registered plugins."""
    return tuple(sorted(METHODS))


def settings_of(name: str) -> "type[MethodSettings]":
    """Return the options dataclass of a method."""
    kind: type[MethodSettings] = _module(name).Settings
    return kind


def implementation_of(name: str) -> "type[Method]":
    """Return the class that implements a method."""
    (kind,) = _methods_in(_module(name))
    return kind


def summary_of(name: str) -> str:
    """Return a one-line description of a method."""
    return (inspect.getdoc(settings_of(name)) or "").splitlines()[0]


def stored_settings(name: str, values: Mapping[str, Any]) -> "MethodSettings | None":
    """Return the settings of a stored run without unknown options.

    The result is None if the method is unknown or a value is invalid.
    """
    if name not in METHODS:
        return None
    kind = settings_of(name)
    known = {f.name for f in fields(kind)}
    try:
        return build(kind, {k: v for k, v in values.items() if k in known}, where=name)
    except ConfigError:
        return None


def model_options_of(name: str) -> tuple[str, ...]:
    """Return the options of a method that name a trained network."""
    known = fields(settings_of(name)) if name in METHODS else ()
    return tuple(f.name for f in known if f.metadata.get("names_model"))


def is_reconstruction(name: str, data: str) -> bool:
    """Return whether a method has neither released code nor published values for this data set.

    A recipe is a reconstruction if it or its method is one, and a combination if its member is.
    Unknown methods are not.
    """
    if name in COMBINATIONS:
        return is_reconstruction(COMBINATIONS[name].member, data)
    if name in RECIPES:
        recipe = RECIPES[name]
        own = reconstructed_on(recipe.reconstruction, data)
        return own or is_reconstruction(recipe.method, data)
    return name in METHODS and reconstructed_on(settings_of(name).reconstruction, data)


def own_augment_of(name: str) -> str | None:
    """Return the default kind of augmentation of a method or recipe, or None if it is unknown."""
    if name in RECIPES:
        recipe = RECIPES[name]
        return recipe.options.get("augment", {}).get("kind") or own_augment_of(recipe.method)
    return settings_of(name).own_augment if name in METHODS else None


@contextmanager
def registered(plugin: Plugin) -> Iterator[None]:
    """Register the method of a plugin for the duration of the block."""
    if plugin.name in (*METHODS, *RECIPES, *COMBINATIONS):
        raise ConfigError(
            f"A method named '{plugin.name}' already exists.",
            hint=f"Rename {plugin.path.name}: the method is named after its file.",
        )
    _plugins[plugin.name] = plugin
    METHODS[plugin.name] = plugin.module.__name__
    try:
        yield
    finally:
        del _plugins[plugin.name], METHODS[plugin.name]


def loaded_plugin() -> Plugin | None:
    """Return the registered plugin, or None."""
    return next(iter(_plugins.values()), None)


def plugin_of(name: str) -> Plugin | None:
    """Return the plugin whose method has this name, or None for built-in methods."""
    return _plugins.get(name)


@contextmanager
def loaded(path: Path) -> Iterator[Plugin]:
    """Execute a plugin, and keep its module in `sys.modules` inside the block."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*\.py", path.name):
        raise ConfigError(
            f"'{path.name}' is not a valid name for a plugin.",
            hint="Use lowercase letters, digits and underscores, e.g. my_method.py for my-method.",
        )
    if not path.is_file():
        raise ConfigError(f"There is no plugin {path}.", hint=nearest_path(path))
    source = path.read_bytes()  # read once, so that the executed bytes are the hashed bytes
    module = ModuleType(f"peerdg_plugin_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses and type hints need it
    try:
        _execute(source, path, module)
        _check(path, module)
        name, digest = path.stem.replace("_", "-"), hashlib.sha256(source).hexdigest()
        yield Plugin(name, path, digest, module)
    finally:
        sys.modules.pop(module.__name__, None)


def _module(name: str) -> Any:
    if name not in METHODS:
        known = (*METHODS, *RECIPES, *COMBINATIONS)
        raise ConfigError(f"Unknown method '{name}'.", hint=did_you_mean(name, known))
    return importlib.import_module(METHODS[name])


def _methods_in(module: ModuleType) -> "list[type[Method]]":
    """Return the methods defined in a module, without imported ones."""
    from peerdg.methods.base import Method

    return [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Method)
        and value.__module__ == module.__name__
    ]


def _execute(source: bytes, path: Path, module: ModuleType) -> None:
    try:
        exec(compile(source, str(path), "exec"), vars(module))  # noqa: S102  (the user named it)
    except SyntaxError as error:
        raise ConfigError(
            f"The plugin {path} is not valid Python: line {error.lineno}: {error.msg}."
        ) from error
    except (Exception, SystemExit) as error:
        where = f"{path} cannot be imported:{_line(error, path)}"
        raise ConfigError(f"The plugin {where} {type(error).__name__}: {error}") from error


def _line(error: BaseException, path: Path) -> str:
    """Describe the last line of the plugin in the traceback of an error."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    return f" line {lines[-1]}:" if lines else ""


def _check(path: Path, module: ModuleType) -> None:
    """Reject a file without a frozen dataclass `Settings` and exactly one complete `Method`."""
    from peerdg.methods.base import Method, MethodSettings

    settings = getattr(module, "Settings", None)
    if not (isinstance(settings, type) and issubclass(settings, MethodSettings)):
        raise ConfigError(f"The plugin {path} has no class Settings(MethodSettings).", hint=_HINT)
    if "__dataclass_params__" not in vars(settings):
        raise ConfigError(f"Settings of the plugin {path} is not a frozen dataclass.", hint=_HINT)
    for f in fields(settings):
        if "help" not in f.metadata:
            raise ConfigError(
                f"The option '{f.name}' of the plugin {path} is not made with `option`.", hint=_HINT
            )
    try:
        settings()
    except Exception as error:
        raise ConfigError(f"The defaults of the plugin {path} are invalid: {error}") from error
    methods = _methods_in(module)
    if len(methods) != 1:
        raise ConfigError(f"The plugin {path} must define exactly one Method, not {len(methods)}.")
    if methods[0].loss is Method.loss and methods[0].step is Method.step:
        raise ConfigError(f"{methods[0].__name__} of the plugin {path} has no loss.", hint=_HINT)
