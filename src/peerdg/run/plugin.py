"""Let a run use the method of a plugin: a file that the user named, never one that a file names."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from peerdg.data.benchmarks import BENCHMARKS
from peerdg.errors import ConfigError
from peerdg.methods.registry import Plugin, loaded, registered
from peerdg.run.config import SCALARS, SECTIONS


@contextmanager
def plugin_method(path: Path) -> Iterator[Plugin]:
    """Inside the block, the method of a plugin can be trained like any other.

    Args:
        path: The file, which is executed.

    Raises:
        ConfigError: If it is not a plugin, or its name is taken.
    """
    with loaded(path) as plugin:
        taken = {*SECTIONS, *SCALARS, *(name.replace("-", "_") for name in BENCHMARKS)}
        if plugin.name.replace("-", "_") in taken:
            raise ConfigError(
                f"'{plugin.name}' is an option of every run, so no method can have this name.",
                hint=f"Rename {plugin.path.name}: a method is named as its file.",
            )
        with registered(plugin):
            yield plugin
