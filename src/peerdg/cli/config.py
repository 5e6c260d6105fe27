"""`peerdg config`: the complete configuration that given options resolve to."""

from pathlib import Path
from typing import Annotated

from rich.text import Text

from peerdg.cli.flags import CONFIG, DATA, PLUGIN, Options, explained_choices, resolve_flags
from peerdg.run.config import RunConfig
from peerdg.run.presets import Choices, preset_files
from peerdg.terminal import console


def config(
    data: Annotated[str | None, DATA] = None,
    /,
    *,
    explain: bool = False,
    file: Annotated[Path | None, CONFIG] = None,
    plugin: Annotated[Path | None, PLUGIN] = None,
    options: Options = None,
) -> None:
    """Print the complete configuration as TOML, ready for `peerdg train --config`.

    Args:
        explain: Print the preset files that the run would use instead, the most general first.
            Their comments say where each value comes from. What your images decide stands above.
    """
    resolved, choices = resolve_flags(data, options, file=file)
    text = _explanation(resolved, choices) if explain else resolved.toml()
    console.print(Text(text), soft_wrap=True, end="")


def _explanation(config: RunConfig, choices: Choices | None) -> str:
    """Print the preset files below comments with the budget and the choices for the images."""
    name = choices.preset if choices else config.benchmark
    above = [f"Preset '{name}', budget '{config.budget}'.", *explained_choices(config, choices)]
    texts = [f"## {file}.toml\n{text}" for file, text in preset_files(name).items()]
    return "\n".join(["".join(f"# {line}\n" for line in above), *texts])
