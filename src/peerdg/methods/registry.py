"""Find a method by name, built in or from a plugin: one file with its `Settings` and its `Method`.

Torch is imported when the options of a method are asked for. Loading a plugin executes it. That
happens only for a file that was named on the command line or in a call of `peerdg.fit`, never
because a run folder or a config file names one.
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
from peerdg.options import build, did_you_mean

if TYPE_CHECKING:
    from peerdg.methods.base import Method, MethodSettings

_NAMES = (
    "ada advst augmix barlow-twins erm l2d m-ada me-ada metacnn miro mixstyle pden peer "
    "randaugment randconv simde teacher"
)
METHODS = {name: f"peerdg.methods.{name.replace('-', '_')}" for name in _NAMES.split()}
"""The module of each method. A plugin has its method here while it is `registered`."""

MAX_PLUGIN_BYTES = 2**20
_HINT = "docs/add-a-method.md shows what the file must have."


@dataclass(frozen=True)
class Plugin:
    """A loaded plugin."""

    name: str  # of its method: that of the file, with hyphens for underscores
    path: Path
    sha256: str  # of the executed bytes
    module: ModuleType  # in `sys.modules` while the plugin is registered

    @property
    def identity(self) -> str:
        """What a run records of it."""
        return f"{self.path.name} sha256:{self.sha256}"

    def failed_in(self, error: BaseException) -> bool:
        """Tell whether an error comes from, or through, a line of the plugin."""
        return bool(_line(error, self.path))


_plugins: dict[str, Plugin] = {}  # by the name of their method, filled by `registered` only


def method_names() -> tuple[str, ...]:
    """Every method, those of registered plugins included."""
    return tuple(sorted(METHODS))


def settings_of(name: str) -> "type[MethodSettings]":
    """Return the dataclass of a method's options."""
    kind: type[MethodSettings] = _module(name).Settings
    return kind


def implementation_of(name: str) -> "type[Method]":
    """Return the class that implements a method."""
    (kind,) = _methods_in(_module(name))
    return kind


def summary_of(name: str) -> str:
    """Describe a method in one line."""
    return (inspect.getdoc(settings_of(name)) or "").splitlines()[0]


def stored_settings(name: str, values: Mapping[str, Any]) -> "MethodSettings | None":
    """Make the settings of a stored run; options that are not known here are left out.

    None if there is no such method here, or it refuses a value.
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
    """List the options of a method that name a trained network."""
    known = fields(settings_of(name)) if name in METHODS else ()
    return tuple(f.name for f in known if f.metadata.get("names_model"))


def is_reconstruction(name: str, data: str) -> bool:
    """Tell whether no published code or paper specifies the method or recipe for this data set.

    A recipe is one if it or its objective is, and a combination if its member is. Methods that are
    not known here are none.
    """
    if name in COMBINATIONS:
        return is_reconstruction(COMBINATIONS[name].member, data)
    if name in RECIPES:
        recipe = RECIPES[name]
        own = reconstructed_on(recipe.reconstruction, data)
        return own or is_reconstruction(recipe.method, data)
    return name in METHODS and reconstructed_on(settings_of(name).reconstruction, data)


def own_augment_of(name: str) -> str | None:
    """Return the kind of augmentation that a method or recipe stands for, if it is known here."""
    if name in RECIPES:
        recipe = RECIPES[name]
        return recipe.options.get("augment", {}).get("kind") or own_augment_of(recipe.method)
    return settings_of(name).own_augment if name in METHODS else None


@contextmanager
def registered(plugin: Plugin) -> Iterator[None]:
    """Inside the block, the method of a plugin is known like any other."""
    if plugin.name in (*METHODS, *RECIPES, *COMBINATIONS):
        raise ConfigError(
            f"There is a method '{plugin.name}' already.",
            hint=f"Rename {plugin.path.name}: a method is named as its file.",
        )
    _plugins[plugin.name] = plugin
    METHODS[plugin.name] = plugin.module.__name__
    try:
        yield
    finally:
        del _plugins[plugin.name], METHODS[plugin.name]


def loaded_plugin() -> Plugin | None:
    """Return the registered plugin, if there is one."""
    return next(iter(_plugins.values()), None)


def plugin_of(name: str) -> Plugin | None:
    """Return the plugin whose method has this name. None for methods of the package."""
    return _plugins.get(name)


def file_of(identity: str) -> str:
    """Return the file's name in what a run has recorded of a plugin."""
    return identity.partition(" sha256:")[0]


@contextmanager
def loaded(path: Path) -> Iterator[Plugin]:
    """Execute a plugin. Its module is known to Python inside the block."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*\.py", path.name):
        raise ConfigError(
            f"A plugin is named as its method; '{path.name}' cannot be.",
            hint="Use small letters, digits and underscores: my_method.py for --method my-method.",
        )
    if not path.is_file() or path.stat().st_size > MAX_PLUGIN_BYTES:
        raise ConfigError(f"There is no plugin {path} of at most {MAX_PLUGIN_BYTES:,} bytes.")
    source = path.read_bytes()  # read once: what is executed is what is hashed
    module = ModuleType(f"peerdg_plugin_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses and type hints look it up
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
    """List the methods that a module defines; those that it imports do not count."""
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
    """Say where in the plugin an error comes from."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    return f" line {lines[-1]}:" if lines else ""


def _check(path: Path, module: ModuleType) -> None:
    """Refuse a file without a frozen dataclass `Settings` and exactly one complete `Method`."""
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
        raise ConfigError(f"The defaults of the plugin {path} are refused: {error}") from error
    methods = _methods_in(module)
    if len(methods) != 1:
        raise ConfigError(f"The plugin {path} must define one Method, not {len(methods)}.")
    if methods[0].loss is Method.loss and methods[0].step is Method.step:
        raise ConfigError(f"{methods[0].__name__} of the plugin {path} has no loss.", hint=_HINT)
