"""Make the parts of a run from its options: data, network, method."""

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import nn

from peerdg.augment.augment_options import AugmentSettings, make_augment
from peerdg.augment.protocol import Augment
from peerdg.averages.base import ValidationLoss
from peerdg.crafted import DISJOINT, FAMILIES
from peerdg.crafted.sets import crafted_domains
from peerdg.data import VALIDATION
from peerdg.data.benchmarks import benchmark
from peerdg.data.classes import check_class_map
from peerdg.data.disk import check_root
from peerdg.data.domain import Domain
from peerdg.data.splits import Splits, with_targets
from peerdg.errors import (
    ConfigError,
    PeerdgWarning,
)
from peerdg.evaluate.accuracy import evaluate_domain
from peerdg.methods.base import Method, RunContext
from peerdg.methods.registry import implementation_of
from peerdg.models.backbones import build_classifier
from peerdg.models.classifier import (
    Classifier,
    as_classifier,
)
from peerdg.models.names import check_backbone, has_normalisation
from peerdg.models.weights import initialise
from peerdg.rng import seeded
from peerdg.run.config import RunConfig
from peerdg.run.input_models import load_input_model
from peerdg.train.order import steps_per_epoch
from peerdg.train.source import Source


def load_splits(config: RunConfig, classes: tuple[str, ...] | None = None) -> Splits:
    """The configured data, with all labels in the order of `classes`; default: the source's."""
    data, root = benchmark(config.benchmark), data_root(config)
    splits = match_classes(data.load(config.data, root=root, targets=config.targets), classes)
    return with_targets(splits) if config.oracle else splits


def data_root(config: RunConfig) -> Path | None:
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
        ConfigError: If source and network do not have the same classes, or the map has an unknown
            class name.
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
    """The natural domains of an evaluation: the source's validation images, and the targets."""
    validation = {} if splits.validation is None else {VALIDATION: splits.validation}
    return {**validation, **splits.targets}


def evaluated_on(config: RunConfig, splits: Splits) -> dict[str, Domain]:
    """`evaluated_domains`, and distorted copies of validation images unless `crafted` is off."""
    domains = evaluated_domains(splits)
    if config.crafted == "off" or splits.validation is None:
        return domains
    sample = splits.validation
    if 0 < config.crafted_images < len(sample):  # spread over all of them: they may be sorted
        sample = sample.subset(torch.linspace(0, len(sample) - 1, config.crafted_images).long())
    families = DISJOINT if config.crafted == "disjoint" else FAMILIES
    return {**domains, **crafted_domains(sample, families=families)}


def build_model(
    config: RunConfig, classes: tuple[str, ...], *, note: Callable[[str], None] | None = None
) -> Classifier:
    """The configured network, with its initial weights.

    Args:
        config: The run's description.
        classes: Class names in label order.
        note: Called with a sentence describing the loaded weights.
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


def make_network(
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


def adapt_network(config: RunConfig, network: Classifier, phase: str, size: int) -> Classifier:
    """The network as the method changes it before `phase`; itself if it does not.

    Args:
        config: The run's description.
        network: The network; left as it is.
        phase: `"pretrain"` or `"train"`.
        size: Side of the images that it will see.
    """
    if config.method_settings.adapts_before != phase:
        return network
    method: type[Method] = implementation_of(config.method)
    with seeded(config.seed, "init", "added"):
        return method.adapt(network, config.method_settings, size)


def _context(
    config: RunConfig, source: Source, *, images: int, validation: Domain | None
) -> RunContext:
    """Make the `RunContext` of the method; `images` of the source in all."""
    steps = steps_per_epoch(config.train, images)
    seen = steps * config.train.batch_size
    return RunContext(
        seed=config.main_seed,
        augment=_augment(config, source.size),
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
        load_model=load_input_model,
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
    context = _context(config, source, images=images or len(source), validation=validation)
    kind: type[Method] = implementation_of(config.method)
    method = kind.build(model, config.method_settings, context)
    watched = (*config.average.kind[kind.averages_used :], *config.average.also)
    method.attach_averages({name: context.make_average(name, method.trained) for name in watched})
    return method


def _augment(config: RunConfig, size: int) -> Augment:
    """The configured augmentation; the default one if the method does not augment."""
    # Its options are then without effect, and need not fit the images.
    settings = config.augment if config.augments else AugmentSettings()
    return make_augment(settings, seed=config.main_seed, size=size)


def _validation_loss(validation: Domain | None, size: int) -> ValidationLoss | None:
    if validation is None:
        return None
    return lambda model: float(evaluate_domain(model, validation, size=size)["loss"])
