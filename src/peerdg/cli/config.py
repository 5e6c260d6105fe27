"""`peerdg config`: the complete configuration that given options resolve to."""

from rich.text import Text

from peerdg.cli.flags import ConfigFile, Data, Options, Plugin, explained_choices, resolve_flags
from peerdg.run.presets import preset_files
from peerdg.terminal import console


def config(
    data: Data = None,
    /,
    *,
    explain: bool = False,
    file: ConfigFile = None,
    plugin: Plugin = None,
    options: Options = None,
) -> None:
    """Print the complete configuration as TOML, ready for `peerdg train --config`.

    Example: `peerdg config digits --method peer --budget paper > peer.toml`

    Args:
        explain: Print the preset files that the run would use instead. Their comments say where
            each value comes from. What your images decide is above them.
    """
    resolved, choices = resolve_flags(data, options, file=file)
    text = resolved.toml()
    if explain:
        name = choices.preset if choices else resolved.benchmark
        above = [f"Preset '{name}', budget '{resolved.budget}'."]
        above += explained_choices(resolved, choices)
        texts = [f"## {file}.toml\n{text}" for file, text in preset_files(name).items()]
        text = "\n".join(["".join(f"# {line}\n" for line in above), *texts])
    console.print(Text(text), soft_wrap=True, end="")
