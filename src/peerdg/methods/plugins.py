"""A method in a file of the user's own: one file with its `Settings` and its `Method`.

Loading a plugin executes it. That happens only for a file that was named on the command line or in
a call of `peerdg.fit`, never because a run folder or a config file names one. Free of torch, unless
a plugin imports it.
"""

import hashlib
import importlib.abc
import importlib.util
import inspect
import os
import re
import sys
import traceback
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import Any

from peerdg.errors import ConfigError
from peerdg.files import NotRegularError, open_regular
from peerdg.methods.metadata import MethodSettings

LARGEST = 2**20  # bytes
_NAME = re.compile(r"[a-z][a-z0-9_]*")
_HINT = "docs/add-a-method.md shows what the file must have."


@dataclass(frozen=True)
class Plugin:
    """A loaded plugin.

    Args:
        name: The method's name: that of the file, with hyphens for underscores.
        path: The file.
        sha256: Of the bytes that were executed.
        module: What it defines.
        implementation: Its `Method`.
    """

    name: str
    path: Path
    sha256: str
    module: ModuleType
    implementation: type[Any]

    def forget(self) -> None:
        """Remove it from Python's list of modules."""
        sys.modules.pop(self.module.__name__, None)

    def failed_in(self, error: BaseException) -> bool:
        """Whether an error comes from, or through, a line of the plugin."""
        return bool(_line(error, self.path))

    @property
    def identity(self) -> str:
        """What a run records of it: the file's name and its SHA-256."""
        return f"{self.path.name} sha256:{self.sha256}"


def load_plugin(path: Path) -> Plugin:
    """Execute a plugin, and find its settings and its method.

    Raises:
        ConfigError: If the file cannot be read or executed, or is no plugin.
    """
    if path.suffix != ".py" or not _NAME.fullmatch(path.stem):
        raise ConfigError(
            f"A plugin is a Python file that is named as its method; '{path.name}' cannot be.",
            hint="Use small letters, digits and underscores: my_method.py for --method my-method.",
        )
    source = _read(path)
    name = f"peerdg_plugin_{path.stem}"
    try:
        module = _execute(path, source, name)
        _check_settings(path, getattr(module, "Settings", None))
        implementation = _implementation(path, module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return Plugin(
        name=path.stem.replace("_", "-"),
        path=path,
        sha256=hashlib.sha256(source).hexdigest(),
        module=module,
        implementation=implementation,
    )


def file_of(identity: str) -> str:
    """The file's name in what a run has recorded of a plugin."""
    return identity.partition(" sha256:")[0]


def _read(path: Path) -> bytes:
    """The file, read once: what is executed is what is hashed."""
    try:
        with open_regular(path, follow_links=True) as file:
            if os.fstat(file.fileno()).st_size > LARGEST:
                raise ConfigError(f"The plugin {path} has more than {LARGEST:,} bytes.")
            return file.read()
    except FileNotFoundError as error:
        raise ConfigError(f"There is no plugin {path}.", hint="Check --plugin.") from error
    except NotRegularError as error:
        raise ConfigError(f"The plugin {path} is not a regular file.") from error
    except OSError as error:
        raise ConfigError(f"Cannot read the plugin {path}: {error.strerror}.") from error


class _Loader(importlib.abc.SourceLoader):
    """Gives Python the bytes that were read, and leaves no compiled file beside the plugin."""

    def __init__(self, path: Path, source: bytes) -> None:
        self.path = path
        self.source = source

    def get_filename(self, fullname: str) -> str:
        return str(self.path)

    def get_data(self, path: str | bytes) -> bytes:
        return self.source


def _execute(path: Path, source: bytes, name: str) -> ModuleType:
    loader = _Loader(path, source)
    spec = importlib.util.spec_from_loader(name, loader, origin=str(path))
    assert spec is not None  # noqa: S101  (narrows the type; None is for loaders of no module)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and type hints look it up
    try:
        loader.exec_module(module)
    except SyntaxError as error:
        raise ConfigError(
            f"The plugin {path} is not valid Python: line {error.lineno}: {error.msg}."
        ) from error
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"The plugin {path} cannot be imported:{_line(error, path)} "
            f"{type(error).__name__}: {error}",
            hint="It must run by itself: python " + str(path),
        ) from error
    return module


def _line(error: BaseException, path: Path) -> str:
    """Where in the plugin an error comes from."""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    return f" line {lines[-1]}:" if lines else ""


def _check_settings(path: Path, settings: object) -> None:
    """Refuse anything but a frozen dataclass whose options have a default, a help and a check."""
    if not (isinstance(settings, type) and issubclass(settings, MethodSettings)):
        raise ConfigError(
            f"The plugin {path} has no class Settings(MethodSettings) with its options.", hint=_HINT
        )
    parameters = vars(settings).get("__dataclass_params__")
    if parameters is None or not parameters.frozen:
        raise ConfigError(
            f"Settings of the plugin {path} is no frozen dataclass.",
            hint="Write @dataclass(frozen=True, kw_only=True) above it.",
        )
    for f in fields(settings):
        if "help" not in f.metadata:
            raise ConfigError(
                f"The option '{f.name}' of the plugin {path} has no help.",
                hint=f"Make it with peerdg.options.option: {f.name}: ... = option(default, help).",
            )
    try:
        settings()
    except Exception as error:
        raise ConfigError(
            f"Settings of the plugin {path} cannot be made with its defaults: {error}"
        ) from error


def _implementation(path: Path, module: ModuleType) -> type[Any]:
    """The one `Method` that the file defines; those that it imports do not count."""
    from peerdg.methods.base import Method

    found = [
        value
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Method)
        and value.__module__ == module.__name__
    ]
    if len(found) != 1:
        names = ", ".join(kind.__name__ for kind in found)
        raise ConfigError(
            f"The plugin {path} must define one Method; "
            + (f"it defines {names}." if found else "it defines none."),
            hint=_HINT,
        )
    (kind,) = found
    missing = sorted(kind.__abstractmethods__)
    if not missing and kind.loss is Method.loss and kind.step is Method.step:
        missing = ["loss"]
    if missing or inspect.isabstract(kind):
        raise ConfigError(
            f"{kind.__name__} of the plugin {path} does not define {', '.join(missing)}.",
            hint=_HINT,
        )
    return kind
