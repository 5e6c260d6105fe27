"""Put one run together: data, model, method, loop, evaluation, run folder."""

import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from peerdg.augment.base import resize
from peerdg.augment.policy import Policy
from peerdg.averages.base import ValidationLoss
from peerdg.crafted.families import DISJOINT, FAMILIES
from peerdg.crafted.sets import crafted_domains
from peerdg.data import VALIDATION
from peerdg.data.benchmarks.disk import check_root
from peerdg.data.classes import check_class_map, parse_class_map
from peerdg.data.domain import Domain
from peerdg.data.progress import showing
from peerdg.data.registry import benchmark
from peerdg.data.splits import Splits
from peerdg.errors import (
    ConfigError,
    DataError,
    NumericalError,
    PeerdgWarning,
    Stopped,
)
from peerdg.evaluate.accuracy import evaluate_domain, evaluate_models
from peerdg.evaluate.detail import evaluate_in_detail
from peerdg.files import require_own_files, sha256, write_json
from peerdg.methods.base import Method, RunContext
from peerdg.methods.clean import CleanImages
from peerdg.methods.erm import ERM
from peerdg.methods.registry import implementation_of
from peerdg.models.backbones import build_classifier
from peerdg.models.batch_statistics import recalibrate, recalibrated
from peerdg.models.classifier import (
    Classifier,
    as_classifier,
    has_batch_statistics,
    images_per_pass,
)
from peerdg.models.fingerprint import network_fingerprint
from peerdg.models.names import check_backbone, has_normalisation, is_weights_file
from peerdg.models.pretrained import initialise, weights_file
from peerdg.models.stored import (
    DESCRIPTION,
    describe_model,
    how_far,
    load_stored,
    save_model,
    training_progress,
    write_model,
)
from peerdg.rng import seeded
from peerdg.run.calibrate import SECONDS, Trial, calibrate
from peerdg.run.card import write_card
from peerdg.run.checkpointer import Checkpointer
from peerdg.run.folder import RunFolder
from peerdg.run.forecast import Costs, PhasePlan, RunPlan
from peerdg.run.hardware import find_device, has_bf16
from peerdg.run.manifest import (
    added_record,
    check_manifest,
    record_roles,
    require_batch_statistics,
    require_same_augmentation,
    require_same_layers,
)
from peerdg.run.minutes import TimeBudget, fit_epochs, schedule
from peerdg.run.profile import profiled
from peerdg.run.progress import Progress
from peerdg.run.record import training_record
from peerdg.run.recorder import Recorder
from peerdg.run.settings import RunConfig, notes
from peerdg.text import one_line
from peerdg.train.loop import Evaluate, Phase, Services, evaluation_epochs, run_phase
from peerdg.train.order import steps_per_epoch
from peerdg.train.signals import stop_on_signals
from peerdg.train.source import Source, require_memory
from peerdg.train.state import TrainState

CALIBRATION_SHARE = 0.05  # of the given minutes, to measure what fits into them
MOST_CALIBRATION = 20.0  # seconds
STOP_RECALIBRATION = 10.0  # seconds for the statistics of a model that is stored by a stop


def execute(
    config: RunConfig,
    run: RunFolder,
    progress: Progress,
    *,
    splits: Splits | None = None,
    model: nn.Module | None = None,
    profile: bool = False,
    budget: TimeBudget | None = None,
) -> Classifier:
    """Train what `config` describes, or go on with it, and leave the result in `run`.

    Args:
        config: The complete description.
        run: The folder, held by this process.
        progress: Receives what happens.
        splits: The data, for data sets that only exist in memory.
        model: The network to train, in place of `config.backbone`; a module that is no
            `Classifier` becomes one with the classes of the data.
        profile: Measure where the time goes, and leave it in `profile.json`.
        budget: The time a new run may take; it decides the epochs, which the run folder keeps.

    Returns:
        The deployed model.
    """
    classes = model.classes if isinstance(model, Classifier) else None
    if splits is not None:
        class_map = parse_class_map(config.data.class_map)
        splits = match_classes(splits, classes, class_map=class_map)
    if run.done:
        if run.may_renew:
            splits = splits or load_splits(config, classes)
        if splits is not None:
            check_manifest(config, run, splits)
    if run.done:  # still: new data may have started it anew
        return load_stored(run.model, model)[0]
    began = time.perf_counter()
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    device = find_device(config.device)
    if splits is None:  # before the weights: they may be a long download for the wrong folder
        benchmark(config.benchmark).require_source(config.data, _data_root(config))
    if model is None:
        weights_file(config.backbone, config.weights)  # missing ones are reported before any work
    with showing(progress.reading):
        splits = splits or load_splits(config, classes)
        domains = judged_on(config, splits)
    inputs = _fingerprints(config, model)  # before anything changes the network
    for sentence in _describe(config, splits):
        progress.note(sentence)
    _check_batches(config, splits.train)
    source = Source(splits.train, config.transform, device=device)
    about_weights: list[str] = []
    config.method_settings.check_images(source.size)
    network = _network(config, model, splits.train.classes, source.size, about_weights.append)
    network = _adapt(config, network, "pretrain")
    adapted = _adapt(config, network, "train")  # only to know it: the weights are not there yet
    network.to(device)
    if config.compile:
        network.encoder.compile()
    _check_fit(network, splits, source.size)
    run.check_space(_space_needed(adapted) + _pool_bytes(config, source))
    costs: Costs | None = None
    if budget is not None and run.is_new:
        config, costs = _fit_epochs(config, budget, network, source, domains, progress)
        run.change_config(config)
    elif progress.shows_time:
        costs = measure_costs(config, network, source, domains)
    for note in (*notes(config), *_precision_notes(config, device)):
        warnings.warn(note, PeerdgWarning, stacklevel=2)
    run.begin()
    check_manifest(config, run, splits, device, {**inputs, **added_record(adapted.added)})
    require_same_layers(run, adapted.added)
    require_same_augmentation(config, run)
    run.failure_file.unlink(missing_ok=True)
    checkpointer = Checkpointer(run, minutes=config.checkpoint_minutes)
    recorder = Recorder(
        run,
        keep_snapshots=config.keep_snapshots,
        model_writer=partial(_model_writer, config, run, splits, source),
    )
    going_on = [f"Going on {checkpointer.position}."]
    for sentence in going_on if checkpointer.resumes else about_weights:
        progress.note(sentence)
    for problem in checkpointer.problems:
        warnings.warn(problem, PeerdgWarning, stacklevel=2)
        run.event("damaged", message=problem)
    run.event("resume" if checkpointer.resumes else "start", torch=torch.__version__)
    if checkpointer.resumes and has_batch_statistics(network):
        require_batch_statistics(run)
    rule = config.batch_statistics
    evaluate = partial(evaluate_models, domains=domains, size=source.size, batch_statistics=rule)
    plan = run_plan(config, len(source), fitted=budget is not None)
    spent = time.perf_counter() - began if budget is None else time.monotonic() - budget.began
    progress.start_run(plan, costs, spent=spent)
    try:
        with profiled(run.profile_file, device) if profile else nullcontext():
            method = _train(
                config, checkpointer, recorder, source, domains, evaluate, network, progress
            )
    except NumericalError as error:
        write_json(run.failure_file, {"error": error.message, **error.details})
        run.event("failure", message=error.message)
        raise
    except Stopped as stopped:
        run.event("stop", signal=stopped.exit_code - 128)
        raise
    finally:
        try:
            checkpointer.close()
        finally:
            recorder.close()
    progress.enter("finish")
    deployed = method.observed[method.deployed_name]
    if config.batch_statistics == "clean" and method.deployed_name not in method.recalibrated:
        recalibrate(deployed, source.clean)  # as it was evaluated; training is over
    _finish(config, run, method, splits, source.size, time.perf_counter() - began)
    return deployed


def _train(
    config: RunConfig,
    checkpointer: Checkpointer,
    recorder: Recorder,
    source: Source,
    domains: Mapping[str, Domain],
    evaluate: Evaluate,
    model: Classifier,
    progress: Progress,
) -> Method:
    """Pre-training, then the method; a resumed run enters where it left."""
    method: Method
    with stop_on_signals() as stop:
        for phase in _phases(config):
            if checkpointer.is_past(phase.name):
                continue
            with seeded(config.seed, "init", phase.name):
                method = _method_of(
                    phase, config, model, source, images=len(source), domains=domains
                ).to(source.device)
            if phase.name == "train":
                trained = next(iter(method.observed))
                record_roles(checkpointer.run, trained=trained, deployed=method.deployed_name)
            services = Services(
                evaluate=evaluate,
                as_evaluated=partial(_as_evaluated, config, source.clean),
                checkpoints=checkpointer,
                records=recorder,
                progress=progress,
                stop=stop,
            )
            run_phase(phase, method, source, seed=config.seed, services=services)
    return method


def _as_evaluated(
    config: RunConfig, clean: CleanImages, method: Method, before_chunk: Callable[[], None]
) -> AbstractContextManager[None]:
    """Observed networks with the batch statistics that `config.batch_statistics` asks for."""
    if config.batch_statistics == "trained":
        return nullcontext()
    models = [m for name, m in method.observed.items() if name not in method.recalibrated]
    return recalibrated(models, clean, before_batch=before_chunk)


def _as_stored(
    config: RunConfig, clean: CleanImages, method: Method
) -> AbstractContextManager[None]:
    """The deployed network as `_as_evaluated` would have it, for a stop, which must not wait long.

    What does not fit into `STOP_RECALIBRATION` is left out: the chunks are shuffled, so the first
    ones are a sample of all images.
    """
    if config.batch_statistics == "trained" or method.deployed_name in method.recalibrated:
        return nullcontext()
    deployed = method.observed[method.deployed_name]
    return recalibrated([deployed], _for_seconds(clean, STOP_RECALIBRATION))


def _for_seconds(chunks: Iterable[Tensor], seconds: float) -> Iterator[Tensor]:
    """The first chunk, and all others that are asked for before the time is over."""
    end = time.monotonic() + seconds
    for chunk in chunks:
        yield chunk
        if time.monotonic() >= end:
            return


def _network(
    config: RunConfig,
    given: nn.Module | None,
    classes: tuple[str, ...],
    size: int,
    note: Callable[[str], None],
) -> Classifier:
    """The network to train: the configured one with its initial weights, or the user's own."""
    if given is None:
        with seeded(config.seed, "init", "model"):
            return build_model(config, classes, note=note)
    mean, std = benchmark(config.benchmark).normalisation(config.data)
    if not any(mean):  # values 0..1 as they are: worth a warning if the network was trained
        return as_classifier(given, classes=classes, mean=None, std=None, image_size=size)
    return as_classifier(given, classes=classes, mean=mean, std=std, image_size=size)


def _adapt(config: RunConfig, network: Classifier, phase: str) -> Classifier:
    """The network as the method changes it before `phase`; itself if it does not."""
    if config.method_settings.adapts_before != phase:
        return network
    method: type[Method] = implementation_of(config.method)
    with seeded(config.seed, "init", "added"):
        return method.adapt(network, config.method_settings)


def _fingerprints(config: RunConfig, given: nn.Module | None) -> dict[str, str]:
    """What the manifest keeps of inputs that the config only names, see `Inputs`."""
    if isinstance(given, nn.Module):
        structure, values = network_fingerprint(given)
        return {"network": structure, "network_weights": values}
    if given is not None or not is_weights_file(config.weights):
        return {}
    return {"weights_sha256": sha256(Path(config.weights), follow_links=True)}


def _phases(config: RunConfig) -> list[Phase]:
    bf16 = config.precision == "bf16"
    main = Phase("train", config.train, config.evaluate_every, bf16)
    first = Phase("pretrain", config.pretrain, None, bf16)
    return [first, main] if config.pretrain.epochs else [main]


def _method_of(
    phase: Phase,
    config: RunConfig,
    model: Classifier,
    source: Source,
    *,
    images: int,
    domains: Mapping[str, Domain],
) -> Method:
    """What a phase trains, on all of the `images` or on a sample of them."""
    if phase.name == "pretrain":
        return ERM(model)
    validation = domains.get(VALIDATION)
    model = _adapt(config, model, phase.name)
    return build_method(config, model, source, images=images, validation=validation)


def run_plan(config: RunConfig, images: int, *, fitted: bool = False) -> RunPlan:
    """What the run is going to do, for its time."""
    return RunPlan(
        tuple(_phase_plan(phase, config, images) for phase in _phases(config)), fitted=fitted
    )


def _phase_plan(phase: Phase, config: RunConfig, images: int) -> PhasePlan:
    settings, method = phase.settings, config.method_settings
    is_main = phase.name == "train"
    changes = method.pool_changes(images, settings.epochs) if is_main else ()
    sizes = accumulate((c.added - c.dropped for c in changes[:-1]), initial=images)
    return PhasePlan(
        phase.name,
        epochs=settings.epochs,
        steps=steps_per_epoch(settings, images),
        period=method.period if is_main else 1,
        evaluations=evaluation_epochs(phase),
        epoch_steps=tuple(steps_per_epoch(settings, size) for size in sizes) if changes else (),
        growth=tuple(change.added / images for change in changes),
    )


def _fit_epochs(
    config: RunConfig,
    budget: TimeBudget,
    model: Classifier,
    source: Source,
    domains: Mapping[str, Domain],
    progress: Progress,
) -> tuple[RunConfig, Costs]:
    """The config that takes the given time, and the measured costs it was chosen by."""
    seconds = min(MOST_CALIBRATION, max(SECONDS, CALIBRATION_SHARE * budget.seconds))
    costs = measure_costs(config, model, source, domains, seconds=seconds)
    if costs is None:
        raise ConfigError(
            "The time of this run cannot be measured in advance.",
            hint="Give --epochs in place of --minutes.",
        )
    fitted = fit_epochs(
        config,
        budget,
        costs,
        lambda wanted: run_plan(wanted, len(source)),
        spent=time.monotonic() - budget.began,
    )
    progress.note(
        f"--minutes {budget.minutes:g}: {schedule(fitted)}, in place of {schedule(config)}."
    )
    return fitted, costs


def measure_costs(
    config: RunConfig,
    model: Classifier,
    source: Source,
    domains: Mapping[str, Domain],
    *,
    seconds: float = SECONDS,
) -> Costs | None:
    """Try out a few steps and an evaluation on copies; None if that cannot be done."""
    plan = run_plan(config, len(source))
    largest = max(domains.values(), key=len) if domains else source.domain
    sample = largest.subset(torch.arange(min(len(largest), images_per_pass(source.size))))

    def evaluate(models: Mapping[str, Classifier]) -> int:
        evaluate_models(models, {"sample": sample}, size=source.size)
        return len(sample)

    trials = [
        Trial(
            planned,
            phase.settings,
            partial(_method_of, phase, config, images=len(source), domains=domains),
            bf16=phase.bf16,
        )
        for planned, phase in zip(plan.phases, _phases(config), strict=True)
    ]
    validation = domains.get(VALIDATION)
    recalibrates = config.batch_statistics == "clean" and has_batch_statistics(model)
    return calibrate(
        trials,
        model,
        source,
        seed=config.seed,
        evaluate=evaluate,
        evaluated_images=sum(map(len, domains.values())),
        recalibrated_images=len(source) if recalibrates else 0,
        finish_images=0 if validation is None else len(validation),
        seconds=seconds,
    )


def build_method(
    config: RunConfig,
    model: Classifier,
    source: Source,
    *,
    images: int | None = None,
    validation: Domain | None = None,
) -> Method:
    """The configured method around `model`, and the averages that only watch it.

    Args:
        config: The run's description.
        model: The network.
        source: The training images, or a sample of them.
        images: How many there are in all, if `source` is a sample.
        validation: The source's validation images, if there are any.
    """
    settings = config.augment
    augment = Policy.named(
        settings.policy,
        num_ops=2 if settings.num_ops is None else settings.num_ops,
        magnitude=9 if settings.magnitude is None else settings.magnitude,
        operations=settings.operations,
        absolute_pixels=settings.absolute_pixels,
        seed=config.seed,
    )
    images = images or len(source)
    steps = steps_per_epoch(config.train, images)
    seen = steps * config.train.batch_size
    context = RunContext(
        seed=config.seed,
        augment=augment,
        average=config.average,
        clean=source.clean,
        pool=source.pool,
        batch_statistics=config.batch_statistics,
        passes=seen / images if source.repeats else 0,
        period=config.method_settings.period,
        epochs=config.train.epochs,
        steps=steps,
        image_size=source.size,
        validation_loss=_validation_loss(validation, source.size),
        load_model=load_teacher,
    )
    kind: type[Method] = implementation_of(config.method)
    method = kind.build(model, config.method_settings, context)
    watched = config.average.kind[kind.averages_used :]
    method.watch({name: context.make_average(name, method.trained) for name in watched})
    return method


def _validation_loss(validation: Domain | None, size: int) -> ValidationLoss | None:
    if validation is None:
        return None
    return lambda model: float(evaluate_domain(model, validation, size=size)["loss"])


def load_teacher(path: str) -> Classifier:
    """The model of a run or model folder; warns if it comes from an unfinished run."""
    teacher, description = load_stored(model_folder(Path(path)))
    if far := how_far(description):
        warnings.warn(f"The teacher in {path} was {far}.", PeerdgWarning, stacklevel=2)
    return teacher


def build_model(
    config: RunConfig, classes: tuple[str, ...], *, note: Callable[[str], None] | None = None
) -> Classifier:
    """The configured network, with its initial weights.

    Args:
        config: The run's description.
        classes: Class names in label order.
        note: Is told in a sentence which weights were loaded.
    """
    check_backbone(config.backbone, config.weights)
    mean, std = None, None  # the backbone's: its weights expect no other
    if not has_normalisation(config.backbone):
        mean, std = benchmark(config.benchmark).normalisation(config.data)
    model = build_classifier(config.backbone, classes=classes, mean=mean, std=std)
    report = initialise(model, config.backbone, config.weights)
    if report.unused:  # perhaps the weights of a larger relative of the network
        warnings.warn(str(report), PeerdgWarning, stacklevel=2)
    elif note is not None:
        note(str(report))
    return model


def load_splits(config: RunConfig, classes: tuple[str, ...] | None = None) -> Splits:
    """The configured data, with all labels in the order of `classes`; default: the source's."""
    data, root = benchmark(config.benchmark), _data_root(config)
    return match_classes(data.load(config.data, root=root, targets=config.targets), classes)


def _data_root(config: RunConfig) -> Path | None:
    """The folder of the data, which must be there if the data set needs one."""
    data = benchmark(config.benchmark)
    root = None if config.root is None else Path(config.root)
    if data.needs_root and root is None:
        raise ConfigError(
            f"{data.name} needs the folder with its files.", hint="Give it with --root DIR."
        )
    return check_root(root) if data.needs_root else root


def match_classes(
    splits: Splits,
    classes: tuple[str, ...] | None = None,
    *,
    class_map: Mapping[str, str] | None = None,
) -> Splits:
    """Relabel every part in one class order, matched by name.

    Args:
        splits: The data.
        classes: The class order of the network to train; None keeps the source's.
        class_map: For classes that targets call otherwise, the source's names.

    Raises:
        ConfigError: If source and network do not have the same classes, or the map has a name that
            nobody has.
        DataError: If a target has a class that the source lacks.
    """
    source = splits.train.classes
    if classes is None:
        classes = source
    elif set(classes) != set(source):
        raise ConfigError(
            f"The network has the classes {', '.join(classes)}; the training images have "
            f"{', '.join(source)}.",
            hint="Give both the same names, in any order; peerdg.as_domain(data, classes=[...]) "
            "names the classes of data in memory.",
        )
    validation = splits.validation and splits.validation.with_classes(classes)
    theirs = {label for domain in splits.targets.values() for label in domain.classes}
    check_class_map(class_map or {}, theirs=theirs, ours=classes)
    targets = {
        name: domain.with_classes(classes, class_map) for name, domain in splits.targets.items()
    }
    return Splits(splits.train.with_classes(classes), validation, targets)


def evaluated_domains(splits: Splits) -> dict[str, Domain]:
    """What the observed models are judged on: the source's validation images, and the targets."""
    validation = {} if splits.validation is None else {VALIDATION: splits.validation}
    return {**validation, **splits.targets}


def judged_on(config: RunConfig, splits: Splits) -> dict[str, Domain]:
    """`evaluated_domains`, and distorted copies of validation images if the run wants them."""
    domains = evaluated_domains(splits)
    if config.crafted == "off" or splits.validation is None:
        return domains
    sample = splits.validation
    if 0 < config.crafted_images < len(sample):  # spread over all of them: they may be sorted
        sample = sample.subset(torch.linspace(0, len(sample) - 1, config.crafted_images).long())
    families = DISJOINT if config.crafted == "disjoint" else FAMILIES
    return {**domains, **crafted_domains(sample, families=families)}


def model_folder(path: Path) -> Path:
    """The model of a run folder, or the folder itself if it is a model folder.

    Raises:
        DamagedError: If the folder holds a link, pipe or device.
    """
    if any(os.path.lexists(path / part) for part in ("model", DESCRIPTION)):
        require_own_files(path)
    return path / "model" if (path / "model").is_dir() else path


def _model_writer(
    config: RunConfig,
    run: RunFolder,
    splits: Splits,
    source: Source,
    state: TrainState,
    records: list[dict[str, Any]] | None,
) -> Callable[[], None] | None:
    """What writes the deployed model; None if it has not learnt an epoch yet.

    Inside an evaluation it is taken as it is. Without `records`, at a stop, its batch statistics
    are first made what an evaluation would use.
    """
    method, pretraining = state.method, state.phase == "pretrain"
    progress = training_progress(
        epoch=0 if pretraining else method.learnt_epochs(state.epoch),
        epochs=config.train.epochs,
        pretrain_epoch=state.epoch if pretraining else config.pretrain.epochs,
        pretrain_epochs=config.pretrain.epochs,
        complete=False,
    )
    if not progress["epoch"] and not progress["pretrain_epoch"]:
        return None
    name = method.deployed_name
    model = method.observed[name]
    own = [record for record in records or () if record["model"] == name]
    description = describe_model(
        model,
        backbone=config.backbone,
        image_size=source.size,
        stored_size=splits.train.image_size[0],
        training=training_record(config, splits, own, None, batch_norm=has_batch_statistics(model)),
        progress=progress,
    )
    as_stored = nullcontext() if records is not None else _as_stored(config, source.clean, method)
    with as_stored:  # Copied now: it is written while training goes on.
        tensors = {n: t.detach().to("cpu", copy=True) for n, t in model.state_dict().items()}
    return partial(_write_with_card, run.model, tensors, description)


def _write_with_card(folder: Path, tensors: dict[str, Tensor], description: dict[str, Any]) -> None:
    write_model(folder, tensors, description)
    write_card(folder)


def _finish(
    config: RunConfig, run: RunFolder, method: Method, splits: Splits, size: int, seconds: float
) -> None:
    last = [r for r in run.metrics.read() if r["kind"] == "evaluation"]
    final = [r for r in last if r["epoch"] == config.train.epochs]
    deployed = method.deployed_name
    model = method.observed[deployed]
    detail = None
    if splits.validation is not None:
        detail = evaluate_in_detail(model, splits.validation, size=size, worst=0)
    mine = [record for record in final if record["model"] == deployed]
    digest = save_model(
        run.model,
        model,
        backbone=config.backbone,
        image_size=size,
        stored_size=splits.train.image_size[0],
        training=training_record(
            config, splits, mine, detail, batch_norm=has_batch_statistics(model)
        ),
        progress=training_progress(
            epoch=method.learnt_epochs(config.train.epochs),
            epochs=config.train.epochs,
            pretrain_epoch=config.pretrain.epochs,
            pretrain_epochs=config.pretrain.epochs,
            complete=True,
        ),
    )
    write_card(run.model)
    run.event("done", seconds=round(seconds, 3))
    accuracy: dict[str, dict[str, float]] = {}
    for record in final:
        accuracy.setdefault(record["model"], {})[record["domain"]] = record["accuracy"]
    write_json(
        run.done_file, {"weights_sha256": digest, "deployed": deployed, "accuracy": accuracy}
    )


def _describe(config: RunConfig, splits: Splits) -> list[str]:
    """What a person should know about data that no paper describes."""
    if config.benchmark != "own-data" or config.root is None:
        return []
    classes, held_out = splits.train.classes, splits.validation
    names = ", ".join(classes[:8]) + (", ..." if len(classes) > 8 else "")
    said = [f"{len(splits.train):,} images of {len(classes)} classes to learn: {names}."]
    if held_out is not None:
        option = "--own-data.validation-fraction or --own-data.validation-folder"
        said.append(f"{len(held_out):,} images for validation ({option}).")
    if not splits.targets:
        said.append("No target: judged on validation images and their distorted copies (--target).")
    return said


def _check_fit(model: Classifier, splits: Splits, size: int) -> None:
    """Show the model one image of each domain before any work is done."""
    was_training = model.training
    for domain in (splits.train, *evaluated_domains(splits).values()):
        try:
            with torch.inference_mode():
                model.eval()(resize(domain.images[:1].to(model.head.weight.device), size))
        except RuntimeError as error:
            raise DataError(
                f"The network cannot take the {size} x {size} images of '{domain.name}': "
                f"{one_line(error)}.",
                hint="Change --transform.size, or choose another --backbone.",
            ) from error
    model.train(was_training)


def _check_batches(config: RunConfig, source: Domain) -> None:
    for phase in (config.pretrain, config.train):
        if phase.epochs:
            steps_per_epoch(phase, len(source))


def _space_needed(model: Classifier) -> int:
    """Three checkpoints of the network, its average and two moments, and the model twice."""
    return (3 * 4 + 2) * sum(p.numel() * p.element_size() for p in model.parameters())


def _pool_bytes(config: RunConfig, source: Source) -> int:
    """The most that images added to the training pool take, in memory and on disk.

    Raises:
        ConfigError: If there is no memory for them.
    """
    changes = config.method_settings.pool_changes(len(source), config.train.epochs)
    added = most = 0
    for change in changes:
        most = max(most, added + change.added)  # what is dropped stays in the checkpoint before
        added += change.added - change.dropped
    require_memory(most * source.bytes_per_image)
    return most * source.bytes_per_image


def _precision_notes(config: RunConfig, device: torch.device) -> list[str]:
    if config.precision == "float32" or has_bf16(device):
        return []
    return [
        f"{str(device).upper()} has no bfloat16 arithmetic here; --precision bf16 is emulated and "
        "can be ten times slower. Use --precision float32."
    ]
