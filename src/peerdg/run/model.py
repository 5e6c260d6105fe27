"""Write the deployed model of a run and its model card."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup
from safetensors.torch import load_file

from peerdg.data import CRAFTED, VALIDATION
from peerdg.errors import DamagedError
from peerdg.evaluate.accuracy import BINS, DomainReport, evaluate_in_detail
from peerdg.evaluate.selection import best_so_far
from peerdg.evaluate.statistics import FEW, accuracy_text
from peerdg.files import replace_atomically, write_json
from peerdg.methods.base import Method
from peerdg.models.classifier import has_batch_statistics
from peerdg.models.stored import WEIGHTS, describe_model, how_far, require_model, write_model
from peerdg.run.config import SECTIONS, RunConfig
from peerdg.run.folder import RunFolder
from peerdg.run.hardware import peak_memory
from peerdg.run.prepare import Inputs
from peerdg.terminal import markdown_environment, visible
from peerdg.train.state import TrainState

CARD = "MODEL_CARD.md"
LAST = "selection rule last: no epoch was chosen by its accuracy"


def model_writer(
    config: RunConfig,
    run: RunFolder,
    inputs: Inputs,
    state: TrainState,
    records: Sequence[Mapping[str, Any]],
) -> Callable[[], None] | None:
    """Return a function that writes the deployed model with its evaluation `records`.

    The result is None if the model has not been trained for an epoch yet, or if `config.select`
    prefers an earlier epoch.
    """
    epoch = state.method.epochs_seen(state.epoch)
    is_untrained = not epoch and not config.pretrain.epochs
    selected = selected_epoch(config, run, state.method, default=state.epoch)
    if selected != state.epoch or (is_untrained and config.select == "last"):
        return None
    description = _describe(
        config, run, inputs, state.method, records, epoch=epoch, selected=selected
    )
    weights = state.method.evaluated_networks[state.method.deployed_name].state_dict()
    # Copy the weights now. They are written while training continues.
    tensors = {name: tensor.detach().to("cpu", copy=True) for name, tensor in weights.items()}

    def write() -> None:
        write_model(run.model, tensors, description)
        write_card(run.model)

    return write


def finish(
    config: RunConfig, run: RunFolder, inputs: Inputs, method: Method, seconds: float
) -> None:
    """Write the finished model, its card and `done.json` into the run folder.

    If `config.select` chose an earlier epoch, its stored weights are loaded into the network.
    """
    evaluations = [record for record in run.metrics.read() if record["kind"] == "evaluation"]
    final = [record for record in evaluations if record["epoch"] == config.train.epochs]
    deployed, epoch = method.deployed_name, method.epochs_seen(config.train.epochs)
    selected = selected_epoch(config, run, method, default=config.train.epochs)
    shown = [record for record in evaluations if record["epoch"] == selected]
    if selected != config.train.epochs:
        stored = require_model(run.model)
        if stored["training"]["epoch"] != selected:
            raise DamagedError(
                f"{run.model} does not have the model of epoch {selected}.",
                hint="Train the run again with --overwrite.",
            )
        epoch = stored["progress"]["epoch"]
        method.evaluated_networks[deployed].load_state_dict(load_file(run.model / WEIGHTS))
    description = _describe(
        config, run, inputs, method, shown, epoch=epoch, selected=selected, complete=True
    )
    digest = write_model(run.model, method.evaluated_networks[deployed].state_dict(), description)
    write_card(run.model)
    run.event("done", seconds=round(seconds, 3), peak_memory=peak_memory())
    accuracy: dict[str, dict[str, float]] = {}
    for record in final:
        accuracy.setdefault(record["model"], {})[record["domain"]] = record["accuracy"]
    done = {"weights_sha256": digest, "deployed": deployed, "accuracy": accuracy}
    write_json(run.done_file, done)


def selected_epoch(config: RunConfig, run: RunFolder, method: Method, *, default: int) -> int:
    """Return the epoch that `config.select` chooses from the evaluations so far."""
    if config.select == "last":
        return default
    return best_so_far(run.metrics.read(), config.select, model=method.deployed_name)


def _describe(
    config: RunConfig,
    run: RunFolder,
    inputs: Inputs,
    method: Method,
    records: Iterable[Mapping[str, Any]],
    *,
    epoch: int,
    selected: int,
    complete: bool = False,
) -> dict[str, Any]:
    """Build the contents of `model.json` from the deployed model and its evaluation `records`."""
    splits, size, tables = inputs.splits, inputs.source.size, config.tables()
    model = method.evaluated_networks[method.deployed_name]
    settings = {
        f"{section}.{name}": _without_folder(value)
        for section in (config.method, *SECTIONS)
        for name, value in tables.get(section, {}).items()
    }
    images, detail = {"train": len(splits.train)}, None
    if splits.validation is not None:
        images[VALIDATION] = len(splits.validation)
        if complete:
            detail = evaluate_in_detail(model, splits.validation, size=size, worst=0)
    selection = LAST
    if config.select != "last":
        selection = f"selection rule {config.select}: epoch {selected} of {config.train.epochs}"
    training = {
        "data": config.benchmark,
        "source": splits.train.name,
        "images": images,
        "fingerprint": splits.train.fingerprint,
        "method": config.name,
        "deployed": config.deployed_average or config.method_settings.deploys,
        "weights": _without_folder(config.weights),
        "budget": config.budget,
        "seed": config.seed,
        "settings": settings,
        "selection": selection,
        "epoch": selected,
        **results((r for r in records if r["model"] == method.deployed_name), detail),
    }
    if config.train_seed is not None:
        training["train_seed"] = config.train_seed
    if has_batch_statistics(model):
        rule = "frozen" if method.frozen_statistics else config.batch_statistics
        training["batch_statistics"] = rule
    if run.manifest is not None and run.manifest.oracle:
        training["oracle"] = True
    return describe_model(
        model,
        backbone=config.backbone,
        image_size=size,
        stored_size=splits.train.image_size[0],
        training=training,
        progress={
            "complete": complete,
            "epoch": epoch,
            "epochs": config.train.epochs,
            "pretrain_epoch": config.pretrain.epochs,
            "pretrain_epochs": config.pretrain.epochs,
        },
    )


def results(
    records: Iterable[Mapping[str, Any]], validation: DomainReport | None
) -> dict[str, Any]:
    """Return accuracy by domain and calibration in the format of `model.json`."""
    return {
        "accuracy": {r["domain"]: {"accuracy": r["accuracy"], "n": r["n"]} for r in records},
        "calibration": validation
        and {"error": validation.calibration.error, "bins": BINS, "n": validation.n},
    }


def _without_folder(value: Any) -> Any:
    """Keep only the file name, because a shared model must not reveal local paths."""
    return Path(value).name if isinstance(value, str) and Path(value).name != value else value


def write_card(folder: Path) -> None:
    """Write `MODEL_CARD.md` into a model folder."""
    with replace_atomically(folder / CARD) as temporary:
        temporary.write_text(model_card(require_model(folder)), "utf-8")


def model_card(
    description: Mapping[str, Any],
    exported: Mapping[str, Any] | None = None,
    *,
    file: str = "",
    difference: float = 0.0,
) -> str:
    """Render the card of a model as Markdown from its `model.json`. Names are escaped.

    Args:
        description: Content of `model.json`.
        exported: Description of the exported file, if the card is for one.
        file: Name of the exported file.
        difference: Largest difference between its logits and the original model's.
    """
    training, combined = description.get("training") or {}, description.get("combined")
    domains = training.get("accuracy") or {}
    templates = markdown_environment("run", keep_trailing_newline=True)
    templates.filters["numbers"] = lambda values: ", ".join(f"{value:.4g}" for value in values)
    templates.filters["seeds"] = _seeds
    templates.filters["visible"] = visible
    templates.filters["python"] = lambda value: Markup(visible(repr(value)))  # noqa: S704
    templates.filters["accuracy"] = lambda result: accuracy_text(
        result["accuracy"], result["n"], digits=2, with_n=False
    )
    return templates.get_template("card.md.jinja").render(
        {
            **description,
            "training": training,
            "far": how_far(description),
            "of_runs": combined and all(m.get("weights_sha256") for m in combined["members"]),
            "has_targets": any(d != VALIDATION and not d.startswith(CRAFTED) for d in domains),
            "few": FEW,
            "exported": exported,
            "file": file,
            "difference": difference,
        }
    )


def _seeds(record: Mapping[str, Any]) -> str:
    """Format the seeds as `SEED`, or `SEED/TRAIN_SEED` if the main phase has its own."""
    seeds = [record.get("seed"), record.get("train_seed")]
    return "/".join(str(seed) for seed in seeds if seed is not None) or "unknown"
