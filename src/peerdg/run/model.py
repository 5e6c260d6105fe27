"""The deployed model of a run: write it with its card, and load models that a method is given."""

import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from torch import Tensor

from peerdg.data import CRAFTED, VALIDATION
from peerdg.data.splits import Splits
from peerdg.errors import DataError, PeerdgWarning
from peerdg.evaluate.accuracy import BINS, DomainReport, evaluate_in_detail
from peerdg.evaluate.statistics import FEW, accuracy_text
from peerdg.files import reading, replace_atomically, sha256, write_json
from peerdg.methods.base import Method
from peerdg.methods.clean import CleanImages
from peerdg.methods.registry import model_options_of
from peerdg.models.backbones import build_classifier
from peerdg.models.classifier import Classifier, has_batch_statistics
from peerdg.models.names import BACKBONES, TIMM
from peerdg.models.statistics import clean_statistics
from peerdg.models.stored import (
    describe_model,
    how_far,
    load_stored,
    require_model,
    save_model,
    write_model,
)
from peerdg.models.weights import initialise, weights_file
from peerdg.run.config import SECTIONS, RunConfig
from peerdg.run.folder import RunFolder
from peerdg.run.hardware import peak_memory
from peerdg.terminal import markdown_text, visible
from peerdg.train.source import Source
from peerdg.train.state import TrainState

CARD = "MODEL_CARD.md"
SELECTION = "selection rule last: no epoch was chosen by its accuracy"
STOP_STATISTICS_SECONDS = 10.0  # for the batch statistics of a model that is stored by a stop
PUBLISHED = "imagenet"  # the weights of a network that is given by its name


def model_writer(
    config: RunConfig,
    run: RunFolder,
    splits: Splits,
    source: Source,
    state: TrainState,
    records: list[dict[str, Any]] | None,
) -> Callable[[], None] | None:
    """Prepare to write the deployed model. None if it was not trained for an epoch yet.

    Inside an evaluation the model is taken as it is. Without `records`, at a stop, its batch
    statistics are first computed as an evaluation would.
    """
    method, pretraining = state.method, state.phase == "pretrain"
    epoch = 0 if pretraining else method.epochs_seen(state.epoch)
    pretrain_epoch = state.epoch if pretraining else config.pretrain.epochs
    if not epoch and not pretrain_epoch:
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
        progress=_progress(config, epoch, pretrain_epoch, complete=False),
    )
    as_stored = nullcontext() if records is not None else _as_stored(config, source.clean, method)
    with as_stored:  # copied now, because it is written while training continues
        tensors = {n: t.detach().to("cpu", copy=True) for n, t in model.state_dict().items()}

    def write() -> None:
        write_model(run.model, tensors, description)
        write_card(run.model)

    return write


def finish(
    config: RunConfig, run: RunFolder, method: Method, splits: Splits, size: int, seconds: float
) -> None:
    """Write the finished model, its card and `done.json` into the run folder."""
    final = [
        record
        for record in run.metrics.read()
        if record["kind"] == "evaluation" and record["epoch"] == config.train.epochs
    ]
    deployed = method.deployed_name
    model = method.evaluated_networks[deployed]
    validation = None
    if splits.validation is not None:
        validation = evaluate_in_detail(model, splits.validation, size=size, worst=0)
    own = [record for record in final if record["model"] == deployed]
    epoch = method.epochs_seen(config.train.epochs)
    digest = save_model(
        run.model,
        model,
        backbone=config.backbone,
        image_size=size,
        stored_size=splits.train.image_size[0],
        training=_training_record(config, run, splits, method, own, validation),
        progress=_progress(config, epoch, config.pretrain.epochs, complete=True),
    )
    write_card(run.model)
    run.event("done", seconds=round(seconds, 3), peak_memory=peak_memory())
    accuracy: dict[str, dict[str, float]] = {}
    for record in final:
        accuracy.setdefault(record["model"], {})[record["domain"]] = record["accuracy"]
    write_json(
        run.done_file, {"weights_sha256": digest, "deployed": deployed, "accuracy": accuracy}
    )


def _progress(
    config: RunConfig, epoch: int, pretrain_epoch: int, *, complete: bool
) -> dict[str, Any]:
    return {
        "complete": complete,
        "epoch": epoch,
        "epochs": config.train.epochs,
        "pretrain_epoch": pretrain_epoch,
        "pretrain_epochs": config.pretrain.epochs,
    }


def _as_stored(
    config: RunConfig, clean: CleanImages, method: Method
) -> AbstractContextManager[None]:
    """Give the deployed network the batch statistics of an evaluation, in bounded time.

    Chunks that do not fit into `STOP_STATISTICS_SECONDS` are left out. They are shuffled, so the
    first ones are a sample of all images.
    """
    needs = method.deployed_name in method.needs_clean_statistics
    if config.batch_statistics == "trained" or not needs:
        return nullcontext()
    deployed = method.evaluated_networks[method.deployed_name]
    return clean_statistics([deployed], _for_seconds(clean, STOP_STATISTICS_SECONDS))


def _for_seconds(chunks: Iterable[Tensor], seconds: float) -> Iterator[Tensor]:
    end = time.monotonic() + seconds
    for chunk in chunks:
        yield chunk
        if time.monotonic() >= end:
            return


def _training_record(
    config: RunConfig,
    run: RunFolder,
    splits: Splits,
    method: Method,
    records: Sequence[Mapping[str, Any]],
    validation: DomainReport | None = None,
) -> dict[str, Any]:
    """Collect data, method, settings and results of a run for `model.json` and the card.

    Args:
        config: Options of the run.
        run: Run folder.
        splits: Data of the run.
        method: Trained method.
        records: Last evaluations of the deployed model, one for each domain.
        validation: Detailed results on the source's validation images, if there are any.
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
    record = {
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
        "selection": SELECTION,
        **results(records, validation),
    }
    if config.train_seed is not None:
        record["train_seed"] = config.train_seed
    if has_batch_statistics(method.evaluated_networks[method.deployed_name]):
        rule = "frozen" if method.frozen_statistics else config.batch_statistics
        record["batch_statistics"] = rule
    if run.manifest is not None and run.manifest.oracle:
        record["oracle"] = True
    return record


def results(
    records: Iterable[Mapping[str, Any]], validation: DomainReport | None
) -> dict[str, Any]:
    """Return accuracy by domain and calibration, as `model.json` keeps them."""
    return {
        "accuracy": {r["domain"]: {"accuracy": r["accuracy"], "n": r["n"]} for r in records},
        "calibration": validation
        and {"error": validation.calibration.error, "bins": BINS, "n": validation.n},
    }


def _without_folder(value: Any) -> Any:
    """Keep only the file name. A shared model must not reveal local paths."""
    return Path(value).name if isinstance(value, str) and Path(value).name != value else value


def write_card(folder: Path) -> None:
    """Write `MODEL_CARD.md` into a model folder."""
    with replace_atomically(folder / CARD) as temporary:
        temporary.write_text(model_card(require_model(folder)), "utf-8")


def model_card(
    description: Mapping[str, Any],
    *,
    load: Sequence[str] = (
        "import peerdg",
        'model = peerdg.load_model("FOLDER")',
        'print(model.predict("image.png"))',
    ),
    remarks: Sequence[str] = (),
    normalizes: bool = True,
) -> str:
    """Return the card of a model as Markdown. Names from outside are escaped.

    Args:
        description: Content of a `model.json`.
        load: Lines of Python that load the model.
        remarks: Sentences about an exported file, in Markdown.
        normalizes: Whether the loaded model normalizes its input itself.

    Raises:
        DamagedError: If the description is not one that peerdg wrote.
    """
    with reading(Path("model.json")):
        training, combined = description.get("training") or {}, description.get("combined")
        domains = training.get("accuracy") or {}
        is_oracle = bool(training.get("oracle"))
        return _card_template().render(
            {
                **description,
                "training": training,
                "far": how_far(description),
                "of_runs": combined and all(m.get("weights_sha256") for m in combined["members"]),
                "has_targets": any(d != VALIDATION and not d.startswith(CRAFTED) for d in domains),
                "meanings": {d: _meaning(d, is_oracle=is_oracle) for d in domains},
                "few": FEW,
                "load": [Markup(visible(line)) for line in load],  # noqa: S704  (in a code block)
                "remarks": remarks,
                "normalizes": normalizes,
            }
        )


def _meaning(domain: str, *, is_oracle: bool) -> str:
    if domain == VALIDATION:
        return "unseen images of the source domain"
    if domain.startswith(CRAFTED):
        return "distorted copies of validation images: a guess at unseen domains"
    if is_oracle:
        return "oracle: a domain that it, or a network that guided it, was trained on"
    return "an unseen domain, never used to choose anything"


@cache
def _card_template() -> jinja2.Template:
    """Load the template. A value is escaped for Markdown unless it is marked safe."""

    def escape(value: Any) -> Any:
        return value if hasattr(value, "__html__") else markdown_text(str(value))

    environment = jinja2.Environment(  # noqa: S701  (`finalize` escapes, for Markdown)
        finalize=escape, keep_trailing_newline=True, undefined=jinja2.ChainableUndefined
    )
    environment.filters["numbers"] = lambda values: ", ".join(f"{value:.4g}" for value in values)
    environment.filters["seeds"] = _seeds
    environment.filters["accuracy"] = lambda result: accuracy_text(
        result["accuracy"], result["n"], digits=2, with_n=False
    )
    return environment.from_string(
        (resources.files("peerdg.run") / "card.md.jinja").read_text("utf-8")
    )


def _seeds(record: Mapping[str, Any]) -> str:
    """Return the seed, and after a slash that of the main phase if it had its own."""
    seeds = [record.get("seed"), record.get("train_seed")]
    return "/".join(str(seed) for seed in seeds if seed is not None) or "unknown"


def input_models_record(config: RunConfig) -> dict[str, Any]:
    """Return values for the `Manifest` of a run about the models that its method is given.

    Raises:
        PeerdgError: If one of them does not exist.
    """
    settings, names = config.method_settings, model_options_of(config.method)
    values = {name: getattr(settings, name) for name in names}
    models, is_oracle = {}, bool(config.oracle)
    for name, value in values.items():
        if value is None:
            continue
        option = f"{config.method}.{name}"
        if _is_published(value):
            file = weights_file(value, PUBLISHED)
            assert file is not None  # noqa: S101  (None is for no weights)
            models[option] = sha256(file)
        else:
            try:
                description = require_model(Path(value))
            except DataError as error:
                raise DataError(
                    f"--{option.replace('_', '-')}: {error.message}",
                    hint="Give a run folder, a model folder, or a network with published weights: "
                    f"{', '.join(BACKBONES)}.",
                ) from error
            models[option] = description["weights_sha256"]
            is_oracle |= bool(description["training"].get("oracle"))
    return {"models": models, "oracle": is_oracle}


def load_input_model(value: str) -> Classifier:
    """Load the model of a run or model folder, or a network with its published weights.

    Warns if it comes from an unfinished run. The head of a published network is not trained.
    """
    if _is_published(value):
        network = build_classifier(value, classes=("0", "1"))
        initialise(network, value, PUBLISHED)
        return network.eval()
    network, description = load_stored(Path(value))
    if far := how_far(description):
        warnings.warn(f"The model in {value} was {far}.", PeerdgWarning, stacklevel=2)
    return network


def _is_published(value: str) -> bool:
    """Whether it is the name of a network. A folder of that name comes first."""
    return not Path(value).exists() and (value in BACKBONES or value.startswith(TIMM))
