"""`peerdg config`: print the complete configuration of a run."""

from rich.text import Text

from peerdg.cli.flags import ConfigFile, Data, Options, Plugin, resolve_flags
from peerdg.options import dotted, merge, read_toml
from peerdg.run.presets import origins, preset
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
        explain: Add comments on where values come from: given, chosen for your images, or from the
            preset (paper, code, study or assumption). Values without a comment are defaults.
    """
    resolved, choices = resolve_flags(data, options, file=file)
    text = resolved.toml()
    if explain:
        name, budget = choices.preset if choices else resolved.benchmark, resolved.budget
        base = dotted(choices.base(budget) if choices else preset(name, budget))
        final = dotted(resolved.tables())
        why = origins(name, budget) | (choices.reasons if choices else {})
        why = {key: reason for key, reason in why.items() if base.get(key) == final.get(key)}
        why |= dict.fromkeys(dotted(merge(read_toml(file) if file else {}, options or {})), "given")
        lines, section = [f"# Preset '{name}', budget '{budget}'."], ""
        for line in text.splitlines():
            section = f"{line[1:-1]}." if line.startswith("[") else section
            origin = why.get(section + line.partition(" = ")[0])
            lines.append(f"{line}  # {origin}" if origin else line)
        text = "\n".join([*lines, ""])
    console.print(Text(text), soft_wrap=True, end="")
