"""Combine several runs into one model: average their weights or their outputs.

Averaging weights is DiWA: Ramé et al., "Diverse weight averaging for out-of-distribution
generalization", NeurIPS 2022, https://arxiv.org/abs/2205.09739. Averaging the outputs of averaged
models is EoA: Arpit et al., "Ensemble of averages", NeurIPS 2022, https://arxiv.org/abs/2110.10832.
"""

import copy
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from peerdg.averages.base import blend
from peerdg.data.domain import Domain
from peerdg.data.splits import Splits
from peerdg.errors import ConfigError, OutputError, PeerdgError, PeerdgWarning
from peerdg.evaluate.accuracy import evaluate_domain, evaluate_in_detail, evaluate_models
from peerdg.models.classifier import Classifier, has_batch_statistics
from peerdg.models.ensemble import ensemble
from peerdg.models.names import Outputs, Rule
from peerdg.models.statistics import recompute_statistics
from peerdg.models.stored import (
    describe_model,
    describes_ensemble,
    how_far,
    load_stored,
    require_model,
    write_model,
)
from peerdg.options import convert
from peerdg.run.config import resolve, without_method
from peerdg.run.folder import RunFolder, read_run_config
from peerdg.run.model import results, write_card
from peerdg.run.prepare import evaluation_domains, load_splits, match_classes, natural_domains
from peerdg.terminal import storable
from peerdg.train.settings import TransformSettings
from peerdg.train.source import Source

# With these rules, batch statistics are averaged like weights.
LEARNED = ("trained", "frozen")
GREEDY = "runs were chosen by their accuracy on the source's validation images"


@dataclass
class _Member:
    """A run to combine. Its weights are not loaded."""

    path: Path  # run folder or model folder, as the user gave it
    description: dict[str, Any]  # content of its `model.json`
    used: bool = True
    validation: float | None = None  # accuracy on validation images, if computed

    @property
    def training(self) -> dict[str, Any]:
        """Training record, or an empty dict."""
        return dict(self.description["training"])

    @property
    def run(self) -> Path | None:
        """Run folder, if `path` is a run folder or the model folder inside one."""
        places = (self.path, self.path.parent)
        return next((place for place in places if (place / "config.toml").is_file()), None)

    def record(self) -> dict[str, Any]:
        """Describe the member for the `model.json` of the combined model."""
        place = self.path.resolve()
        return {
            "name": storable(place.parent.name if place.name == "model" else place.name),
            "weights_sha256": self.description["weights_sha256"],
            **{key: self.training.get(key) for key in ("method", "seed", "train_seed")},
            "validation": self.validation,
            "used": self.used,
            "progress": how_far(self.description),
        }


class _Data(NamedTuple):
    """Data that the runs were trained on."""

    splits: Splits
    source: Source
    domains: Mapping[str, Domain]  # evaluation domains


def combine(
    runs: Sequence[Path],
    out: Path,
    *,
    rule: Rule = "uniform",
    outputs: Outputs | None = None,
    root: str | None = None,
    splits: Splits | None = None,
    network: nn.Module | None = None,
) -> dict[str, Any]:
    """Combine several runs into a self-contained model folder.

    The rules:

    * `"uniform"`: θ = (1/M) Σ_m θ_m.
    * `"greedy"`: add runs in order of their accuracy on the source's validation images. Keep a run
      if it does not lower the accuracy of the mean.
    * `"ensemble"`: average the outputs, see `models.ensemble`.

    With averaged weights, batch statistics are recomputed on the source's clean images if the runs
    were evaluated that way. If these images are missing, the statistics are averaged. If the data
    is available, the model is evaluated on it for its card. For the arguments see `peerdg.combine`.

    Returns:
        Content of `model.json`, including the accuracies.
    """
    convert(rule, Rule, "rule")
    if outputs is not None and rule != "ensemble":
        raise ConfigError(
            f"--outputs {outputs} has no effect: --rule {rule} averages weights, not outputs.",
            hint="Remove --outputs, or use --rule ensemble.",
        )
    outputs = convert(outputs or "probabilities", Outputs, "outputs")
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise OutputError(f"{out} already exists.", hint="Choose a new folder with -o.")
    members = _read_members(runs)
    if rule != "ensemble":
        _warn_of_different_starts(members)
    data = _find_data(members, root, splits, needed=rule == "greedy")
    statistics = members[0].training.get("batch_statistics")

    def load(member: _Member) -> Classifier:
        return load_stored(member.path, copy.deepcopy(network))[0]

    def with_statistics(mean: Classifier) -> Classifier:
        if data is not None and statistics not in LEARNED and has_batch_statistics(mean):
            recompute_statistics(mean, data.source.clean)
        return mean

    if rule == "ensemble":
        model = ensemble([load(member) for member in members], outputs=outputs).eval()
    elif rule == "uniform":
        model = load(members[0])
        for count, member in enumerate(members[1:], start=1):
            blend(model, load(member), 1 / (count + 1))
        model = with_statistics(model)
    else:
        model = _greedy(members, data, load, with_statistics)
    has_statistics = has_batch_statistics(model)
    if data is None and has_statistics and rule != "ensemble" and statistics not in LEARNED:
        statistics = "mean of the members'"
        message = "The batch statistics of the combined model are averaged, not recomputed"
        warnings.warn(f"{message}: training images not found.", PeerdgWarning, stacklevel=3)
    training = _training(members, rule, outputs, model, data)
    if training and statistics and has_statistics:
        training["batch_statistics"] = statistics
    first = members[0].description
    network_info = {name: first[name] for name in ("backbone", "image_size", "stored_size")}
    description = describe_model(model, **network_info, training=training)
    description["combined"] = {
        "rule": rule,
        "members": [member.record() for member in members],
        "outputs": outputs if rule == "ensemble" else None,
    }
    write_model(out, model.state_dict(), description)
    write_card(out)
    return description


def _greedy(
    members: Sequence[_Member],
    data: _Data | None,
    load: Callable[[_Member], Classifier],
    with_statistics: Callable[[Classifier], Classifier],
) -> Classifier:
    """Average the runs that do not lower the accuracy on validation images."""
    assert data is not None and data.splits.validation is not None  # noqa: S101  (`_find_data`)
    validation, size = data.splits.validation, data.source.size

    def accuracy(model: Classifier) -> float:
        return float(evaluate_domain(model, validation, size=size)["accuracy"])

    for member in members:
        member.validation, member.used = accuracy(load(member)), False
    first, *rest = sorted(members, key=lambda member: -(member.validation or 0.0))
    mean, best, count = load(first), first.validation or 0.0, 1
    first.used = True
    for member in rest:
        candidate = copy.deepcopy(mean)
        blend(candidate, load(member), 1 / (count + 1))
        value = accuracy(with_statistics(copy.deepcopy(candidate)))
        if value >= best:
            mean, best, count = candidate, value, count + 1
            member.used = True
    return with_statistics(mean) if count > 1 else mean


def _training(
    members: Sequence[_Member], rule: Rule, outputs: Outputs, model: Classifier, data: _Data | None
) -> dict[str, Any]:
    """Merge the members' training records, and add the results of the combined model."""
    records = [member.training for member in members if member.used]
    if not all(records):
        return {}

    def joined(name: str) -> str:
        return ", ".join(dict.fromkeys(str(record[name]) for record in records))

    count = f"{len(records)}" + (f" of {len(members)}" if len(records) < len(members) else "")
    averaged = outputs if rule == "ensemble" else "weights"
    images: Counter[str] = Counter()
    for counts in {record["fingerprint"]: record["images"] for record in records}.values():
        images.update(counts)
    training = {
        **{name: joined(name) for name in ("data", "source", "weights", "budget", "fingerprint")},
        "images": {part: images[part] for part in sorted(images)},
        "method": f"mean of the {averaged} of {count} runs: {joined('method')}",
        "seed": records[0]["seed"],
        "settings": {
            name: value
            for name, value in records[0]["settings"].items()
            if all(record["settings"].get(name) == value for record in records)
        },
        "selection": GREEDY if rule == "greedy" else joined("selection"),
    }
    if any(record.get("oracle") for record in records):
        training["oracle"] = True
    if data is not None:
        size, validation = data.source.size, data.splits.validation
        evaluated = evaluate_models({"combined": model}, data.domains, size=size)
        detail = None
        if validation is not None:
            detail = evaluate_in_detail(model, validation, size=size, worst=0)
        training |= results(evaluated, detail)
    return training


def _read_members(runs: Sequence[Path]) -> list[_Member]:
    """Read the description of each run, and reject runs that cannot be combined."""
    if len(runs) < 2:
        raise ConfigError(
            f"At least two runs are needed, got {len(runs)}.",
            hint="peerdg combine runs/a runs/b -o combined",
        )
    members: dict[str, _Member] = {}
    for path in runs:
        member = _Member(path, require_model(path))
        other = members.setdefault(member.description["weights_sha256"], member)
        if other is not member:
            raise ConfigError(
                f"{other.path} and {path} are the same model.",
                hint="Name each run once. Runs with the same --seed need different --train-seed.",
            )
        if describes_ensemble(member.description):
            raise ConfigError(f"{path} is an ensemble.", hint="Combine its members instead.")
        _require_alike(next(iter(members.values())), member)
        if far := how_far(member.description):
            message = f"{path} belongs to an unfinished run: it was {far}."
            warnings.warn(message, PeerdgWarning, stacklevel=3)
    return list(members.values())


def _require_alike(first: _Member, member: _Member) -> None:
    names = ("classes", "backbone", "added_layers", "mean", "std", "image_size", "stored_size")
    pairs = {name: (first.description[name], member.description[name]) for name in names}
    rule = "batch_statistics"
    pairs[rule] = (first.training.get(rule), member.training.get(rule))
    for name, (ours, theirs) in pairs.items():
        if ours != theirs:
            raise ConfigError(
                f"{first.path} and {member.path} have different {name}: {ours} and {theirs}.",
                hint="Combine runs with the same --backbone, classes and image size.",
            )


def _warn_of_different_starts(members: Sequence[_Member]) -> None:
    """Warn if the main phases of the runs did not start from the same weights.

    Averaging weights rarely works for networks with different initializations.
    """
    ours, *others = map(_start, members)
    for theirs in others:
        differing = [name for name in ours if name in theirs and ours[name] != theirs[name]]
        if differing or not ours or not theirs:
            warnings.warn(
                "The runs may not have started from the same weights (differing: "
                f"{', '.join(differing) or 'unknown'}). Train them with the same --seed and "
                "different --train-seed, or use --rule ensemble.",
                PeerdgWarning,
                stacklevel=4,
            )
            return


def _start(member: _Member) -> dict[str, Any]:
    """Return the recorded values that determine the weights before the main phase."""
    training = member.training
    if not training:
        return {}
    start = {name: training[name] for name in ("seed", "weights", "fingerprint")}
    for name, value in training["settings"].items():
        if name.startswith(("pretrain.", "transform.")):
            start[name] = value
    if member.run is not None and (manifest := RunFolder(member.run).manifest) is not None:
        start["network weights"] = manifest.network_weights
        start["file of initial weights"] = manifest.weights_sha256
    return start


def _find_data(
    members: Sequence[_Member], root: str | None, splits: Splits | None, *, needed: bool
) -> _Data | None:
    """Load the data that all runs were trained on, or None if it is missing and not `needed`."""
    try:
        data = _load_data(members, root, splits)
        if needed and data.splits.validation is None:
            raise ConfigError("The data has no validation images.")
        return data
    except PeerdgError as error:
        if needed:
            raise ConfigError(
                f"--rule greedy needs the validation images that the runs used. {error.message}",
                hint=error.hint or "Give the data folder with --root, or use --rule uniform.",
            ) from error
        message = f"The combined model is not evaluated: {error.message}"
        warnings.warn(message, PeerdgWarning, stacklevel=3)
        return None


def _load_data(members: Sequence[_Member], root: str | None, splits: Splits | None) -> _Data:
    fingerprints = {member.training.get("fingerprint") for member in members}
    if len(fingerprints) > 1 or None in fingerprints:
        raise ConfigError("The runs were trained on different or unknown images.")
    description = members[0].description
    classes = tuple(description["classes"])
    run = next((member.run for member in members if member.run), None)
    config = None if run is None else resolve(without_method(read_run_config(run)))
    if splits is not None:
        splits = match_classes(splits, classes)
    elif config is not None:
        config = replace(config, root=root or config.root)
        splits = load_splits(config, classes)
    else:
        raise ConfigError("The data is unknown: none of the folders is a run folder.")
    if splits.train.fingerprint not in fingerprints:
        raise ConfigError("The training images have changed since the runs were trained.")
    domains = natural_domains(splits) if config is None else evaluation_domains(config, splits)
    source = Source(splits.train, TransformSettings(size=description["image_size"]))
    return _Data(splits, source, domains)
