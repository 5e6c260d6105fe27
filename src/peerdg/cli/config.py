"""`peerdg config`: the complete configuration that given options resolve to."""

from typing import Annotated

from cyclopts import Parameter
from rich.text import Text

from peerdg.cli.flags import CommonFlags, Options, explained_choices, resolve_flags
from peerdg.run.choices import Choices
from peerdg.run.config import RunConfig
from peerdg.run.presets import preset_files
from peerdg.terminal import console

_DATA = "data set (`peerdg data list` shows them), or a folder or list of your own images"


def config(
    data: Annotated[str | None, Parameter(help=_DATA)] = None,
    /,
    *,
    explain: bool = False,
    common: CommonFlags | None = None,
    options: Options | None = None,
) -> None:
    """Print the complete configuration as TOML, ready for `peerdg train --config`.

    Args:
        explain: Print the preset files that the run would use instead, the most general first.
            Their comments say where each value comes from. What your images decide stands above.
    """
    resolved, choices = resolve_flags(data, common or CommonFlags(), options)
    text = _explanation(resolved, choices) if explain else resolved.toml()
    console.print(Text(text), soft_wrap=True, end="")


def _explanation(config: RunConfig, choices: Choices | None) -> str:
    """The preset of `config`; above it, as comments, its budget and what the images decided."""
    name = choices.preset if choices else config.benchmark
    above = [f"Preset '{name}', budget '{config.budget}'.", *explained_choices(config, choices)]
    texts = [f"## {file}.toml\n{text}" for file, text in preset_files(name).items()]
    return "\n".join(["".join(f"# {line}\n" for line in above), *texts])
