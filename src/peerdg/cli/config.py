"""`peerdg config`: the complete configuration that given options resolve to."""

from typing import Annotated

from cyclopts import Parameter

from peerdg.cli.console import console
from peerdg.cli.flags import CommonFlags, Options, config_from_flags
from peerdg.train.presets import preset_text


def config(
    data: Annotated[str | None, Parameter(help="data set; `peerdg data list` shows them")] = None,
    /,
    *,
    explain: bool = False,
    common: CommonFlags | None = None,
    options: Options | None = None,
) -> None:
    """Print the complete configuration as TOML, ready for `peerdg train --config`.

    Args:
        explain: Print the preset file instead; its comments say where each value comes from.
    """
    resolved = config_from_flags(data, common or CommonFlags(), options)
    text = preset_text(resolved.benchmark) if explain else resolved.toml()
    console.print(text, markup=False, soft_wrap=True, end="")
