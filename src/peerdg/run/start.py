"""Start a run, from the command line or Python. Free of torch until its folder is open."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peerdg.run.config import RunConfig
from peerdg.run.folder import Existing, RunFolder, read_run_config
from peerdg.run.progress import ProgressDisplay

if TYPE_CHECKING:
    from torch import nn

    from peerdg.data.splits import Splits
    from peerdg.models.classifier import Classifier


def start_run(
    config: RunConfig,
    out: Path,
    *,
    existing: Existing,
    progress: ProgressDisplay,
    splits: "Splits | None" = None,
    model: "nn.Module | None" = None,
    profile: bool = False,
    minutes: float | None = None,
    options: Mapping[str, Any] | None = None,
    stop_after: int | None = None,
) -> "tuple[RunConfig, Classifier]":
    """Open the run folder and train into it.

    Args:
        config: The run's options.
        out: The run folder.
        existing: What to do with a run that is there.
        progress: Receives the progress. It is closed at the end.
        splits: The data, if it is in memory.
        model: The network, if it is in memory.
        profile: Measure the time of each stage.
        minutes: Choose the epochs so that a new run takes about this long.
        options: The options that the user set, which `minutes` does not change.
        stop_after: Save and stop after this many epochs of the main phase.

    Returns:
        The options with the chosen epochs, and the deployed network.
    """
    budget = None
    try:
        if minutes is not None:
            from peerdg.run.time_budget import TimeBudget, keep_schedule

            began = time.monotonic()
            budget = TimeBudget.from_options(minutes, options or {}, config.method, began)
            if existing in ("resume", "renew") and RunFolder(out).holds_run:
                config = keep_schedule(config, read_run_config(out), fixed=budget.fixed)
        folder = RunFolder.open(out, config, existing=existing)
        try:
            from peerdg.run.run import train_run  # imports torch: a refused folder is said before

            network = train_run(
                config,
                folder,
                progress,
                splits=splits,
                model=model,
                profile=profile,
                budget=budget,
                stop_after=stop_after,
            )
        finally:
            folder.close()
    finally:
        progress.close()
    if budget is not None:  # The chosen epochs are in the run folder.
        config = keep_schedule(config, read_run_config(out))
    return config, network
