"""Write the deployed model of a run, so far or at its end, with its card."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from peerdg.data.splits import Splits
from peerdg.evaluate.detail import DomainReport, evaluate_in_detail
from peerdg.files import write_json
from peerdg.methods.base import Method
from peerdg.methods.clean import CleanImages
from peerdg.models.classifier import (
    has_batch_statistics,
)
from peerdg.models.statistics import clean_statistics
from peerdg.models.stored import (
    describe_model,
    save_model,
    training_progress,
    write_model,
)
from peerdg.run.card import write_card
from peerdg.run.config import RunConfig
from peerdg.run.folder import RunFolder
from peerdg.run.hardware import peak_memory
from peerdg.run.training_record import training_record
from peerdg.train.source import Source
from peerdg.train.state import TrainState

STOP_STATISTICS_SECONDS = 10.0  # for the statistics of a model that is stored by a stop


def model_writer(
    config: RunConfig,
    run: RunFolder,
    splits: Splits,
    source: Source,
    state: TrainState,
    records: list[dict[str, Any]] | None,
) -> Callable[[], None] | None:
    """Prepare to write the deployed model; None if it has not learnt an epoch yet.

    Inside an evaluation it is taken as it is. Without `records`, at a stop, its batch statistics
    are first made what an evaluation would use.
    """
    method, pretraining = state.method, state.phase == "pretrain"
    progress = training_progress(
        epoch=0 if pretraining else method.epochs_seen(state.epoch),
        epochs=config.train.epochs,
        pretrain_epoch=state.epoch if pretraining else config.pretrain.epochs,
        pretrain_epochs=config.pretrain.epochs,
        complete=False,
    )
    if not progress["epoch"] and not progress["pretrain_epoch"]:
        return None
    name = method.deployed_name
    model = method.evaluated_networks[name]
    own = [record for record in records or () if record["model"] == name]
    description = describe_model(
        model,
        backbone=config.backbone,
        image_size=source.size,
        stored_size=splits.train.image_size[0],
        training=_training_record(config, run, splits, method, own),
        progress=progress,
    )
    as_stored = nullcontext() if records is not None else _as_stored(config, source.clean, method)
    with as_stored:  # Copied now: it is written while training goes on.
        tensors = {n: t.detach().to("cpu", copy=True) for n, t in model.state_dict().items()}
    return partial(_write_with_card, run.model, tensors, description)


def _training_record(
    config: RunConfig,
    run: RunFolder,
    splits: Splits,
    method: Method,
    records: list[dict[str, Any]],
    validation: DomainReport | None = None,
) -> dict[str, Any]:
    """Make the training record of the deployed network."""
    return training_record(
        config,
        splits,
        records,
        validation,
        batch_statistics=_statistics_rule(config, method),
        oracle=run.manifest is not None and run.manifest.oracle,
    )


def _statistics_rule(config: RunConfig, method: Method) -> str | None:
    """By which rule the deployed network is evaluated; None without batch normalisation."""
    if not has_batch_statistics(method.evaluated_networks[method.deployed_name]):
        return None
    return method.statistics_of(method.deployed_name, config.batch_statistics)


def _as_stored(
    config: RunConfig, clean: CleanImages, method: Method
) -> AbstractContextManager[None]:
    """The deployed network as `_as_evaluated` would have it, for a stop, which must not wait long.

    What does not fit into `STOP_STATISTICS_SECONDS` is left out: the chunks are shuffled, so the
    first ones are a sample of all images.
    """
    needs = method.deployed_name in method.needs_clean_statistics
    if config.batch_statistics == "trained" or not needs:
        return nullcontext()
    deployed = method.evaluated_networks[method.deployed_name]
    return clean_statistics([deployed], _for_seconds(clean, STOP_STATISTICS_SECONDS))


def _for_seconds(chunks: Iterable[Tensor], seconds: float) -> Iterator[Tensor]:
    """The first chunk, and all others that are asked for before the time is over."""
    end = time.monotonic() + seconds
    for chunk in chunks:
        yield chunk
        if time.monotonic() >= end:
            return


def _write_with_card(folder: Path, tensors: dict[str, Tensor], description: dict[str, Any]) -> None:
    write_model(folder, tensors, description)
    write_card(folder)


def finish(
    config: RunConfig, run: RunFolder, method: Method, splits: Splits, size: int, seconds: float
) -> None:
    """Leave the finished model, its card and `done.json` in the run folder."""
    last = [r for r in run.metrics.read() if r["kind"] == "evaluation"]
    final = [r for r in last if r["epoch"] == config.train.epochs]
    deployed = method.deployed_name
    model = method.evaluated_networks[deployed]
    detail = None
    if splits.validation is not None:
        detail = evaluate_in_detail(model, splits.validation, size=size, worst=0)
    own = [record for record in final if record["model"] == deployed]
    digest = save_model(
        run.model,
        model,
        backbone=config.backbone,
        image_size=size,
        stored_size=splits.train.image_size[0],
        training=_training_record(config, run, splits, method, own, detail),
        progress=training_progress(
            epoch=method.epochs_seen(config.train.epochs),
            epochs=config.train.epochs,
            pretrain_epoch=config.pretrain.epochs,
            pretrain_epochs=config.pretrain.epochs,
            complete=True,
        ),
    )
    write_card(run.model)
    run.event("done", seconds=round(seconds, 3), peak_memory=peak_memory())
    accuracy: dict[str, dict[str, float]] = {}
    for record in final:
        accuracy.setdefault(record["model"], {})[record["domain"]] = record["accuracy"]
    write_json(
        run.done_file, {"weights_sha256": digest, "deployed": deployed, "accuracy": accuracy}
    )
