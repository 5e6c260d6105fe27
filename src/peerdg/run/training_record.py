"""The training record stored with a model; deterministic for equal runs."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from peerdg.data import VALIDATION
from peerdg.data.splits import Splits
from peerdg.evaluate.detail import BINS, DomainReport
from peerdg.run.config import SECTIONS, RunConfig

SELECTION = "selection rule last: no epoch was chosen by its accuracy"


def training_record(
    config: RunConfig,
    splits: Splits,
    records: Iterable[Mapping[str, Any]],
    validation: DomainReport | None,
    *,
    batch_statistics: str | None,
    oracle: bool = False,
) -> dict[str, Any]:
    """Collect data, method, settings and results of a run, for `model.json` and the model's card.

    Args:
        config: The run's options.
        splits: Its data.
        records: The last evaluations of the deployed model, one for each domain.
        validation: Its results on the source's validation images in detail, if there are any.
        batch_statistics: The rule of its batch statistics; None without batch normalisation.
        oracle: Whether it, or a network that guided it, learnt from targets.
    """
    tables = config.tables()
    settings = {
        f"{section}.{name}": _without_folder(value)
        for section in (config.method, *SECTIONS)
        for name, value in tables.get(section, {}).items()
    }
    images = {"train": len(splits.train)}
    if splits.validation is not None:
        images[VALIDATION] = len(splits.validation)
    return {
        "data": config.benchmark,
        "source": splits.train.name,
        "images": images,
        "fingerprint": splits.train.fingerprint,
        "method": config.name,
        "deployed": config.deployed_average or config.method_settings.deploys,
        "weights": _without_folder(config.weights),
        "budget": config.budget,
        "seed": config.seed,
        **({} if config.train_seed is None else {"train_seed": config.train_seed}),
        "settings": settings,
        **({} if batch_statistics is None else {"batch_statistics": batch_statistics}),
        **({"oracle": True} if oracle else {}),
        "selection": SELECTION,
        "accuracy": {r["domain"]: {"accuracy": r["accuracy"], "n": r["n"]} for r in records},
        "calibration": validation
        and {"error": validation.calibration.error, "bins": BINS, "n": validation.n},
    }


def _without_folder(value: Any) -> Any:
    """Keep only the file name: a shared model must not reveal local paths."""
    return Path(value).name if isinstance(value, str) and Path(value).name != value else value
