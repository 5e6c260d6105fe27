"""`peerdg tune`: search good options of a method by source images."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from peerdg.cli.flags import Data, Options, Whole
from peerdg.data.benchmarks import find_data
from peerdg.errors import ConfigError
from peerdg.options import merge
from peerdg.terminal import Table, command, console, error_console

SHOWN = 10  # trials in the table


def tune(
    data: Data = None,
    /,
    *,
    out: Annotated[Path, Parameter(name=("--out", "-o"))],
    trials: Whole = 20,
    space: Path | None = None,
    objective: Literal["crafted-val", "source-val"] = "crafted-val",
    options: Options = None,
) -> None:
    """Search good options of a method by validation images of the source, never by targets.

    Start the command several times, also on several machines with a shared disk, to train several
    trials at once. Repeat it to continue.

    Example: `peerdg tune photos/ --method peer --trials 30 --out runs/tune`

    Args:
        out: Folder for the search.
        trials: Number of trials.
        space: TOML file with ranges, e.g. peer.w = { low = 0.01, high = 10, log = true }.
            Default: ranges around the learning rate and the main options of the method.
        objective: Images that score a trial: distorted or clean validation images.
    """
    if data is None and "benchmark" not in (options or {}):
        raise ConfigError("No data was given.", hint="Name a data set or a folder of images.")
    from peerdg.benches.tune import Search, counted, default_space, importances, read_space, short
    from peerdg.run.config import resolve_given

    given = merge(options or {}, find_data(data) if data is not None else {})
    if objective == "crafted-val":
        given = merge({"crafted": "disjoint"}, given)
    config = resolve_given(given)[0]
    ranges = default_space(config) if space is None else read_space(space, config)
    for name, each in ranges.items():
        ends = map(short, each.ends)
        error_console.print(f"{name}: {(', ' if each.values else ' to ').join(ends)}")
    search = Search(out, given, ranges, objective, trials)
    study = search.run(lambda text: error_console.print(text, highlight=False, soft_wrap=True))
    complete = [trial for trial in counted(study) if trial.value is not None]
    best = sorted(complete, key=lambda trial: -(trial.value or 0))[:SHOWN]
    rows = [
        [f"{t.number}", f"{t.value:.2f}", *(short(t.params[name]) for name in ranges)] for t in best
    ]
    console.print(Table(["trial", f"{objective} %", *ranges], rows))
    if shares := importances(study):
        console.print("Importance: " + ", ".join(f"{n} {share:.0%}" for n, share in shares.items()))
    console.print(f"Figure: {out / 'tune.png'}")
    again = command("train", "--config", out / "best.toml", "--out", out / "best")
    console.print(f"Train with the best options: {again}")
