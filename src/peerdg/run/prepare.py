"""Prepare a run: load its data and network, build its method, and check that they match."""

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from peerdg.augment.augment_options import AugmentSettings, make_augment
from peerdg.augment.view import resize
from peerdg.crafted import DISJOINT, FAMILIES
from peerdg.crafted.sets import crafted_domains
from peerdg.data import VALIDATION
from peerdg.data.benchmarks import benchmark
from peerdg.data.classes import check_class_map, parse_class_map
from peerdg.data.domain import Domain
from peerdg.data.read import Progress
from peerdg.data.splits import Splits, with_targets
from peerdg.errors import ConfigError, DataError, PeerdgWarning
from peerdg.evaluate.accuracy import evaluate_domain
from peerdg.files import sha256
from peerdg.methods.base import Method, RunContext
from peerdg.methods.erm import ERM
from peerdg.methods.registry import implementation_of, model_options_of
from peerdg.models.backbones import build_classifier
from peerdg.models.classifier import Classifier, as_classifier, in_eval_mode, network_fingerprint
from peerdg.models.names import BACKBONES, TIMM, check_backbone, has_normalization, is_weights_file
from peerdg.models.stored import how_far, load_stored, require_model
from peerdg.models.weights import initialize, weights_file
from peerdg.rng import seeded
from peerdg.run.config import RunConfig
from peerdg.run.hardware import find_device
from peerdg.terminal import one_line
from peerdg.train.settings import Phase
from peerdg.train.source import Source, steps_per_epoch

PUBLISHED = "imagenet"  # weights to load if an input model is given by a network name


@dataclass(frozen=True)
class Inputs:
    """Data and network of a run."""

    splits: Splits  # labels are in the network's class order
    domains: Mapping[str, Domain]  # evaluation domains
    source: Source  # training images, on the run's device
    network: Classifier  # initial network, with the layers that pre-training needs
    fingerprints: Mapping[str, Any]  # `Manifest` fields for inputs that the config names
    weight_messages: Sequence[str]  # messages about the loaded weights


def load_inputs(
    config: RunConfig,
    *,
    splits: Splits | None = None,
    model: nn.Module | None = None,
    note: Callable[[str], None] = lambda text: None,
    reading: Progress | None = None,
) -> Inputs:
    """Load the data and the network, unless they are given, and check that they match.

    `note` is called with messages about the data, `reading` with the progress of reading files.
    """
    if config.threads is not None:
        threads = min(config.threads, os.cpu_count() or 1)  # too many threads crash the process
        torch.set_num_threads(threads)
        if threads < config.threads:
            note(f"--threads {config.threads}: using {threads}, one per core.")
    device = find_device(config.device)
    if splits is None:  # Check the folder before weights are downloaded.
        benchmark(config.benchmark).require_source(config.data, data_root(config))
    if model is None:
        weights_file(config.backbone, config.weights)  # Report missing weights before any work.
    splits = splits or load_splits(config, class_order(model), reading)
    domains = evaluation_domains(config, splits)
    for sentence in _describe(config, splits):
        note(sentence)
    fingerprints = input_models_record(config)
    if isinstance(model, nn.Module):  # Before anything changes the network.
        fingerprints["network"], fingerprints["network_weights"] = network_fingerprint(model)
    elif model is None and is_weights_file(config.weights):
        fingerprints["weights_sha256"] = sha256(Path(config.weights))
    for phase in phases_of(config):
        steps_per_epoch(phase.settings, len(splits.train))  # Raises if a batch is too large.
    config.average.check_validation(available=splits.validation is not None)
    if config.select != "last" and splits.validation is None:
        raise ConfigError(f"--select {config.select} needs validation images of the source.")
    if config.select == "crafted-val" and config.crafted == "off":
        raise ConfigError("--select crafted-val needs --crafted disjoint.")
    batches_from = config.method_settings.batches_from
    source = Source(splits.train, config.transform, device=device, batches_from=batches_from)
    if source.reads_ahead:
        size = f"{source.domain.images.nbytes / 1e9:.1f} GB"
        note(f"The training images ({size}) do not fit into memory, so batches are read ahead.")
    config.method_settings.check_images(source.size)
    if config.augments:
        config.augment.check_images(source.size)
    messages: list[str] = []
    network = make_network(config, model, splits.train.classes, source.size, messages.append)
    network = adapt_network(config, network, "pretrain", source.size)
    adapted = adapt_network(config, network, "train", source.size)
    network.to(device)
    if config.compile:
        network.encoder.compile()
    check_fit(network, splits, source.size)
    fingerprints["added_layers"] = list(adapted.added)
    return Inputs(splits, domains, source, network, fingerprints, messages)


def class_order(model: nn.Module | None) -> tuple[str, ...] | None:
    """Return the class names of a network in memory, if it has any."""
    return model.classes if isinstance(model, Classifier) else None


def load_splits(
    config: RunConfig,
    classes: tuple[str, ...] | None = None,
    progress: Progress | None = None,
    *,
    splits: Splits | None = None,
) -> Splits:
    """Load the configured data, with labels in the order of `classes` (default: the source's).

    If in-memory `splits` are given, they are only relabeled.
    """
    class_map = None
    if splits is None:
        data, root = benchmark(config.benchmark), data_root(config)
        splits = data.load(config.data, root=root, targets=config.targets, progress=progress)
    else:
        class_map = parse_class_map(config.data.class_map)
    splits = match_classes(splits, classes, class_map=class_map)
    return with_targets(splits) if config.oracle else splits


def data_root(config: RunConfig) -> Path | None:
    """Return the data folder. Raise an error if the data set needs one and it is missing."""
    root = None if config.root is None else Path(config.root)
    return benchmark(config.benchmark).check_root(root)


def match_classes(
    splits: Splits,
    classes: tuple[str, ...] | None = None,
    *,
    class_map: Mapping[str, str] | None = None,
) -> Splits:
    """Relabel all splits in the order of `classes` (default: the source's), matched by name.

    `class_map` maps target class names to source class names.
    """
    source = splits.train.classes
    if classes is None:
        classes = source
    elif set(classes) != set(source):
        raise ConfigError(
            f"The network has the classes {', '.join(classes)}, but the training images have "
            f"{', '.join(source)}.",
            hint="Use the same names for both, in any order. For data in memory, set them with "
            "peerdg.as_domain(data, classes=[...]).",
        )
    validation = splits.validation and splits.validation.with_classes(classes)
    theirs = {label for domain in splits.targets.values() for label in domain.classes}
    check_class_map(class_map or {}, theirs=theirs, ours=classes)
    targets = {
        name: domain.with_classes(classes, class_map) for name, domain in splits.targets.items()
    }
    return Splits(splits.train.with_classes(classes), validation, targets)


def natural_domains(splits: Splits) -> dict[str, Domain]:
    """Return all evaluation domains except the crafted ones: validation and targets."""
    validation = {} if splits.validation is None else {VALIDATION: splits.validation}
    return {**validation, **splits.targets}


def evaluation_domains(config: RunConfig, splits: Splits) -> dict[str, Domain]:
    """Return `natural_domains` and, unless switched off, crafted copies of validation images."""
    domains = natural_domains(splits)
    if config.crafted == "off" or splits.validation is None:
        return domains
    sample = splits.validation.sample(config.crafted_images or None)
    families = DISJOINT if config.crafted == "disjoint" else FAMILIES
    return {**domains, **crafted_domains(sample, families=families)}


def make_network(
    config: RunConfig,
    model: nn.Module | None,
    classes: tuple[str, ...],
    size: int,
    note: Callable[[str], None],
) -> Classifier:
    """Return the configured network with its initial weights, or the user's own network."""
    if model is None:
        with seeded(config.seed, "init", "model"):
            return build_model(config, classes, note=note)
    mean, std = benchmark(config.benchmark).normalization(config.data)
    if not any(mean):  # No normalization: `as_classifier` warns if the network is trained.
        return as_classifier(model, classes=classes, mean=None, std=None, image_size=size)
    return as_classifier(model, classes=classes, mean=mean, std=std, image_size=size)


def build_model(
    config: RunConfig, classes: tuple[str, ...], *, note: Callable[[str], None] | None = None
) -> Classifier:
    """Build the configured network with its initial weights, and report them to `note`."""
    check_backbone(config.backbone, config.weights)
    mean, std = None, None  # Pretrained weights expect the normalization of their backbone.
    if not has_normalization(config.backbone):
        mean, std = benchmark(config.benchmark).normalization(config.data)
    model = build_classifier(config.backbone, classes=classes, mean=mean, std=std)
    report = initialize(model, config.backbone, config.weights)
    if report.unused:  # the weights may belong to a larger variant
        warnings.warn(str(report), PeerdgWarning, stacklevel=2)
    elif note is not None:
        note(str(report))
    return model


def adapt_network(config: RunConfig, network: Classifier, phase: str, size: int) -> Classifier:
    """Apply the changes that the method makes to the network before `phase`."""
    if config.method_settings.adapts_before != phase:
        return network
    method: type[Method] = implementation_of(config.method)
    with seeded(config.seed, "init", "added"):
        return method.adapt(network, config.method_settings, size)


def check_fit(model: Classifier, splits: Splits, size: int) -> None:
    """Run one image of each domain through the model to detect wrong shapes early."""
    for domain in (splits.train, *natural_domains(splits).values()):
        try:
            with torch.inference_mode(), in_eval_mode(model):
                model(resize(domain.images[:1].to(model.head.weight.device), size))
        except RuntimeError as error:
            raise DataError(
                f"The network fails on the {size} x {size} images of '{domain.name}': "
                f"{one_line(error)}.",
                hint="Change --transform.size, or choose another --backbone.",
            ) from error


def phases_of(config: RunConfig, stop_after: int | None = None) -> list[Phase]:
    """Return the phases: pre-training, if configured, and the main phase."""
    bf16 = config.precision == "bf16"
    main = Phase("train", config.train, config.evaluate_every, bf16, stop_after)
    first = Phase("pretrain", config.pretrain, None, bf16)
    return [first, main] if config.pretrain.epochs else [main]


def make_method(
    phase: Phase, config: RunConfig, network: Classifier, source: Source, validation: Domain | None
) -> Method:
    """Build the method of a phase: ERM for pre-training, then the configured method."""
    if phase.name == "pretrain":
        return ERM(network)
    network = adapt_network(config, network, phase.name, source.size)
    return build_method(config, network, source, validation=validation)


def build_method(
    config: RunConfig, model: Classifier, source: Source, *, validation: Domain | None = None
) -> Method:
    """Build the configured method for `model`, and attach the configured averages."""
    images, steps = len(source), steps_per_epoch(config.train, len(source))
    # A method without augmentation ignores the options, which may not fit the images.
    augment = config.augment if config.augments else AugmentSettings()

    def validation_loss(model: Classifier) -> float:
        assert validation is not None  # noqa: S101  (only called with validation images)
        return float(evaluate_domain(model, validation, size=source.size)["loss"])

    context = RunContext(
        seed=config.main_seed,
        augment=make_augment(augment, seed=config.main_seed, size=source.size),
        average=config.average,
        clean=source.clean,
        pool=source.pool,
        batch_statistics=config.batch_statistics,
        passes=steps * config.train.batch_size / images if source.is_deterministic else 0,
        period=config.method_settings.period,
        epochs=config.train.epochs,
        steps=steps,
        batch_size=config.train.batch_size,
        image_size=source.size,
        validation_loss=None if validation is None else validation_loss,
        load_model=load_input_model,
    )
    kind: type[Method] = implementation_of(config.method)
    method = kind.build(model, config.method_settings, context)
    attached = (*config.average.kind[kind.averages_used :], *config.average.also)
    method.attach_averages({name: context.make_average(name, method.trained) for name in attached})
    return method


def input_models_record(config: RunConfig) -> dict[str, Any]:
    """Return the `Manifest` fields that describe the method's input models."""
    models, is_oracle = {}, bool(config.oracle)
    for name in model_options_of(config.method):
        value = getattr(config.method_settings, name)
        if value is None:
            continue
        option = f"{config.method}.{name}"
        if _is_published(value):
            file = weights_file(value, PUBLISHED)
            assert file is not None  # noqa: S101  (None means no weights)
            models[option] = sha256(file)
            continue
        try:
            description = require_model(Path(value))
        except DataError as error:
            raise DataError(
                f"--{option.replace('_', '-')}: {error.message}",
                hint="Pass a run folder, a model folder, or a network with published weights: "
                f"{', '.join(BACKBONES)}.",
            ) from error
        models[option] = description["weights_sha256"]
        is_oracle |= bool(description["training"].get("oracle"))
    return {"models": models, "oracle": is_oracle}


def load_input_model(value: str) -> Classifier:
    """Load a model from a run or model folder, or a network with its published weights.

    A warning is issued if the run is unfinished. The head of a published network is untrained.
    """
    if _is_published(value):
        network = build_classifier(value, classes=("0", "1"))
        initialize(network, value, PUBLISHED)
        return network.eval()
    network, description = load_stored(Path(value))
    if far := how_far(description):
        warnings.warn(f"The model in {value} was {far}.", PeerdgWarning, stacklevel=2)
    return network


def _is_published(value: str) -> bool:
    """Whether `value` is a network name. An existing folder with that name takes precedence."""
    return not Path(value).exists() and (value in BACKBONES or value.startswith(TIMM))


def _describe(config: RunConfig, splits: Splits) -> list[str]:
    """Describe a user's own images in a few sentences."""
    if config.benchmark != "own-data" or config.root is None:
        return []
    classes, held_out = splits.train.classes, splits.validation
    names = ", ".join(classes[:8]) + (", ..." if len(classes) > 8 else "")
    sentences = [f"{len(splits.train):,} training images in {len(classes)} classes: {names}."]
    if held_out is not None:
        option = "--own-data.validation-fraction or --own-data.validation-folder"
        sentences.append(f"{len(held_out):,} validation images ({option}).")
    if not splits.targets:
        text = "No targets (--target). Evaluating on validation images and distorted copies."
        sentences.append(text)
    return sentences
