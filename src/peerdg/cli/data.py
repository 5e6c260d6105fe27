"""`peerdg data`: list, show, verify and prepare data sets."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from peerdg.cli.folders import is_folder, read_folders, verify_folders
from peerdg.data.benchmarks import BENCHMARKS, Benchmark, no_such_data
from peerdg.errors import ConfigError, DataError
from peerdg.terminal import console

if TYPE_CHECKING:
    from peerdg.data.splits import Splits

Root = Annotated[Path | None, Parameter(help="folder with the data set's files")]


def list_data() -> None:
    """List the data sets with their domains, licence and origin."""
    for data in BENCHMARKS.values():
        if not data.listed:
            continue
        console.print(f"{data.name}: {data.title}", style="bold", markup=False)
        console.print(f"  source   {data.source}", markup=False)
        console.print(f"  targets  {', '.join(data.targets)}", markup=False)
        console.print(f"  licence  {data.licence}", markup=False, soft_wrap=True)
        console.print(f"  origin   {data.obtain}", markup=False, soft_wrap=True)


def show_data(
    name: str,
    /,
    *,
    output: Annotated[Path, Parameter(name=("--output", "-o"))] = Path("sheet.png"),
    root: Root = None,
) -> None:
    """Write a contact sheet with images of every domain and class.

    Args:
        name: The data set, or a folder or list of your own images.
        output: The PNG file to write.
    """
    from peerdg.data.sheet import contact_sheet
    from peerdg.files import replace_atomically

    if is_folder(name):
        domains = list(read_folders([Path(name)]).parts.values())
    else:
        splits = load_data(name, root)
        domains = [splits.train, *splits.targets.values()]
    sheet = contact_sheet(domains)
    with replace_atomically(output) as temporary:
        sheet.save(temporary, format="PNG")
    console.print(f"{len(domains)} domains in {output}", markup=False)


def verify_data(name: str, /, *folders: Path, root: Root = None) -> None:
    """Say for each domain what is there, what is missing, and where to get it.

    Of your own folders and lists every image is decoded once and compared with all others.

    Ends with code 5 if anything is damaged, or there is nothing to learn on: the source domain is
    missing, or every domain where any can be the source. Other missing domains are reported, but
    one can work with what one has.

    Args:
        name: The data set, or a folder or list of your own images.
        folders: More folders and lists, to find images that are in two of them.
    """
    from peerdg.terminal import Table

    if is_folder(name):
        verify_folders([Path(name), *folders])
        return
    if folders:
        raise ConfigError(f"{name} is a data set; it cannot be verified together with folders.")

    data = _data_set(name, root)
    reports = data.verify(root)
    rows = [
        [f"{r.domain} {r.split}", r.status, _number(r.count), _number(r.expected),
         r.checksum or "-", "optional" if r.optional else ""]
        for r in reports
    ]  # fmt: skip
    columns = ["domain", "status", "images", "expected", "checksum", ""]
    console.print(Table(columns, rows, is_text=True))
    for report in reports:
        for problem in report.problems:
            console.print(f"{report.domain}: {problem}", markup=False, soft_wrap=True)
        if report.status == "missing" and not report.optional:
            text = f"{report.domain}: get it from {report.obtain}"
            console.print(text, markup=False, soft_wrap=True)
    damaged = [r.domain for r in reports if r.status not in ("found", "missing")]
    if damaged:
        raise DataError(f"{name}: damaged or unexpected: {', '.join(damaged)}.")
    missing = [r.domain for r in reports if r.status == "missing" and not r.optional]
    if hasattr(data.settings, "source"):  # any domain can be the source
        if reports and all(r.status == "missing" for r in reports):
            raise DataError(f"{name}: none of its domains is under {root}.")
    elif data.source in missing:
        raise DataError(f"{name}: the source domain '{data.source}' is missing.")


def load_data(name: str, root: Path | None) -> "Splits":
    """The set with its default switches."""
    data = _data_set(name, root)
    return data.load(data.settings(), root=root)


def _data_set(name: str, root: Path | None) -> Benchmark:
    """The data set called `name`, with a folder where it needs one and none where it does not."""
    if name not in BENCHMARKS:
        raise no_such_data(name)
    data = BENCHMARKS[name]
    data.refuse_unused_root(root)
    if data.needs_root:
        require_root(name, root)
    return data


def require_root(name: str, root: Path | None) -> Path:
    """The folder that the user gave, or an error that asks for it."""
    if root is None:
        raise ConfigError(
            f"{name} needs the folder with its files.", hint="Give it with --root DIR."
        )
    return root


def _number(count: int | None) -> str:
    return "-" if count is None else f"{count}"
