"""`peerdg watch`: show runs in a browser as they train."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter, validators

from peerdg.errors import ConfigError
from peerdg.terminal import console

Port = Annotated[int, Parameter(validator=validators.Number(gte=0, lte=65535))]


def watch(folder: Path = Path("runs"), /, *, port: Port = 0) -> None:
    """Show all runs below a folder in a browser as they train: curves, state, time left, log.

    The page is only visible on this machine. The command changes nothing. Stop it with Ctrl-C.

    Example: `peerdg watch runs`

    Args:
        folder: Folder with runs, in any depth.
        port: Port of the page. Default: a free one.
    """
    from peerdg.report.html import uplot
    from peerdg.report.watch import WatchServer

    if not folder.is_dir():
        raise ConfigError(f"There is no folder {folder}.", hint="Start a run with `peerdg train`.")
    uplot()  # fail early if it is not installed
    with WatchServer(folder, port) as server:
        console.print(f"Open {server.address} in a browser. Stop with Ctrl-C.")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return
