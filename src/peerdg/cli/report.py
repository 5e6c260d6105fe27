"""`peerdg report`: write a page about runs."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from peerdg.errors import ConfigError
from peerdg.terminal import console


def report(
    places: tuple[Path, ...],
    /,
    *,
    out: Annotated[Path | None, Parameter(name=("--out", "-o"))] = None,
    title: str | None = None,
) -> None:
    """Write a page that shows what a model can do and how it was trained, or compares runs.

    The page is one HTML file with all figures and images. It opens in any browser, also offline.

    Example: `peerdg report runs/photos-peer-0 -o report.html`

    Args:
        places: Run folders, folders that contain them, or folders with a report's records.
        out: HTML file. Default: report.html in the first folder.
        title: Title of the page.
    """
    from peerdg.benches.folder import BenchFolder
    from peerdg.report.html import HTML, page_file
    from peerdg.report.pages import write_runs_page
    from peerdg.report.runs import collect_runs

    runs = collect_runs(places)
    if not runs:
        where = ", ".join(map(str, places))
        raise ConfigError(f"No runs were found in {where}.", hint="Start one with `peerdg train`.")
    folder = places[0].parent if places[0].is_file() else places[0]
    if out is None and BenchFolder(folder).holds_bench:
        raise ConfigError(f"{folder / HTML} is the page of a bench.", hint="Name another with -o.")
    page = write_runs_page(runs, page_file(out or folder), title=title)
    console.print(f"Page: {page}")
