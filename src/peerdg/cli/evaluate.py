"""`peerdg evaluate`: accuracy of a trained model on other domains."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from peerdg.cli.console import console
from peerdg.errors import ConfigError


def evaluate(
    run: Path,
    data: Annotated[str | None, Parameter(help="data set; default: the run's own")] = None,
    /,
    *,
    root: Annotated[str | None, Parameter(help="folder with the data set's files")] = None,
    target: Annotated[
        tuple[str, ...] | None,
        Parameter(help="target domain; repeat it for several", negative_iterable=()),
    ] = None,
) -> None:
    """Accuracy of a run's deployed model on every domain of a data set.

    Args:
        run: Run folder or model folder.
    """
    from peerdg import api, runner
    from peerdg.report.tables import plain_table
    from peerdg.train.rundir import read_run_config
    from peerdg.train.settings import resolve

    model = api.load_model(run)
    if data is None and not (run / "config.toml").is_file():
        raise ConfigError(f"{run} is a model folder.", hint="Name the data set to evaluate it on.")
    started = read_run_config(run) if data is None else {"benchmark": data}
    given = {"root": root, "targets": list(target) if target else None}
    config = resolve(started, {k: v for k, v in given.items() if v is not None})
    domains = runner.evaluated_domains(runner.load_splits(config))
    rows = []
    for name, domain in domains.items():
        result = model.evaluate(domain)
        rows.append([name, f"{result['n']}", f"{result['accuracy']:.2f}", f"{result['loss']:.4f}"])
    console.print(plain_table(["domain", "images", "accuracy %", "loss"], rows))
