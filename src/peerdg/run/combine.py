"""Several runs into one model: the mean of their weights, or of their outputs.

A mean of weights is DiWA: Ramé et al., "Diverse weight averaging for out-of-distribution
generalization", NeurIPS 2022, https://arxiv.org/abs/2205.09739. A mean of the outputs of averaged
models is EoA: Arpit et al., "Ensemble of averages", NeurIPS 2022, https://arxiv.org/abs/2110.10832.
"""

import copy
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args

from torch import nn

from peerdg.averages.base import blend
from peerdg.data.domain import Domain
from peerdg.data.splits import Splits
from peerdg.errors import ConfigError, OutputError, PeerdgError, PeerdgWarning
from peerdg.evaluate.accuracy import evaluate_domain, evaluate_models
from peerdg.evaluate.detail import BINS, evaluate_in_detail
from peerdg.models.classifier import Classifier, has_batch_statistics
from peerdg.models.combination import CombinedFrom, Member, Outputs, Rule
from peerdg.models.description import format_of
from peerdg.models.ensemble import ensemble
from peerdg.models.statistics import recompute_statistics
from peerdg.models.stored import describe_model, how_far, write_model
from peerdg.options import did_you_mean
from peerdg.run.card import write_card
from peerdg.run.combine_members import (
    MemberFolder,
    read_members,
    require_combinable,
    warn_of_different_starts,
)
from peerdg.run.config import resolve, without_method
from peerdg.run.folder import read_run_config
from peerdg.run.prepare import evaluation_domains, load_splits, match_classes, natural_domains
from peerdg.run.training_record import SELECTION
from peerdg.train.settings import TransformSettings
from peerdg.train.source import Source

# Batch statistics that belong to weights, and are averaged like them.
LEARNT = ("trained", "frozen")
GREEDY = "runs were chosen by their accuracy on the source's validation images"


def combine(
    runs: Sequence[Path],
    out: Path,
    *,
    rule: Rule = "uniform",
    outputs: Outputs | None = None,
    root: str | None = None,
    splits: Splits | None = None,
    network: nn.Module | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Make a model folder of several runs; it needs them no more.

    The rules:

    * `"uniform"`: θ = (1/M) Σ_m θ_m.
    * `"greedy"`: runs in the order of their accuracy on the source's validation images; each is
      added to the mean if the accuracy of the mean does not fall.
    * `"ensemble"`: the mean of the outputs, see `models.ensemble`.

    A mean of weights has batch statistics recomputed on the source's clean images, where the runs
    were evaluated so and the images are there; otherwise the mean of theirs. If the data is there,
    the model is evaluated on it for its card.

    Args:
        runs: Run folders or model folders, at least two.
        out: The model folder to make.
        rule: How.
        outputs: What an ensemble averages; default: probabilities.
        root: Folder with the data, where it is not where the first run had it.
        splits: The data, of runs on data in memory.
        network: The network that the weights belong to, if the runs trained one of your own.
        note: Receives sentences about what was done.

    Returns:
        The description of the model, with the accuracies.

    Raises:
        ConfigError: If the runs cannot be combined, or a greedy choice has no validation images.
        OutputError: If `out` is there already.
    """
    for what, value, known in (("rule", rule, Rule), ("outputs", outputs, Outputs)):
        if value is not None and value not in get_args(known):
            hint = did_you_mean(str(value), get_args(known))
            raise ConfigError(f"Unknown {what} '{value}'.", hint=hint)
    if outputs is not None and rule != "ensemble":
        raise ConfigError(
            f"The rule '{rule}' averages weights, not {outputs}.",
            hint="Leave --outputs out, or use --rule ensemble.",
        )
    _require_free(out)
    members = read_members(runs)
    require_combinable(members)
    if rule != "ensemble":
        warn_of_different_starts(members)
    work = _Combination(members, rule, outputs or "probabilities", network)
    work.data = _find_data(members, root, splits, needed=rule == "greedy")
    model = {"uniform": work.uniform, "greedy": work.greedy, "ensemble": work.ensemble}[rule]()
    for sentence in work.notes(model):
        note(sentence)
    description = work.description(model)
    write_model(out, model.state_dict(), description)
    write_card(out)
    return description


@dataclass
class _Data:
    """The data that the runs were trained on.

    Args:
        splits: Its parts.
        source: The training images, as the network sees them.
        domains: The domains that models are evaluated on.
    """

    splits: Splits
    source: Source
    domains: Mapping[str, Domain]


class _Combination:
    """The work of one rule, and what is known about its result.

    Args:
        members: What is combined.
        rule: How.
        outputs: What an ensemble averages.
        network: The user's own network, if it is one.
    """

    def __init__(
        self,
        members: Sequence[MemberFolder],
        rule: Rule,
        outputs: Outputs,
        network: nn.Module | None,
    ) -> None:
        self.members, self.rule, self.outputs, self.network = members, rule, outputs, network
        self.used = [True] * len(members)
        self.validation: list[float | None] = [None] * len(members)
        self.batch_statistics = members[0].training.get("batch_statistics")
        self.data: _Data | None = None

    def ensemble(self) -> Classifier:
        """Every member, side by side."""
        loaded = [member.load(self.network) for member in self.members]
        return ensemble(loaded, outputs=self.outputs).eval()

    def uniform(self) -> Classifier:
        """The mean of all weights."""
        mean = self._load(0)
        for count in range(1, len(self.members)):
            blend(mean, self._load(count), 1 / (count + 1))
        return self._with_statistics(mean)

    def greedy(self) -> Classifier:
        """The mean of those whose addition does not lower the accuracy on validation images."""
        accuracies = [self._accuracy(self._load(m)) for m in range(len(self.members))]
        self.validation = list(accuracies)
        self.used = [False] * len(self.members)
        first, *rest = sorted(range(len(self.members)), key=lambda m: -accuracies[m])
        mean, best, count = self._load(first), accuracies[first], 1
        self.used[first] = True
        for number in rest:
            candidate = copy.deepcopy(mean)
            blend(candidate, self._load(number), 1 / (count + 1))
            accuracy = self._accuracy(self._with_statistics(copy.deepcopy(candidate)))
            if accuracy >= best:
                mean, best, count = candidate, accuracy, count + 1
                self.used[number] = True
        return self._with_statistics(mean) if count > 1 else mean

    def notes(self, model: Classifier) -> list[str]:
        """Sentences about how the model was made."""
        notes = []
        if self.rule == "greedy":
            chosen = [m.name for m, used in zip(self.members, self.used, strict=True) if used]
            notes.append(
                f"{len(chosen)} of {len(self.members)} runs are in the mean: {', '.join(chosen)}."
            )
        if self._recomputes_statistics(model):
            count = len(self._require_data().source)
            notes.append(f"Batch statistics were recomputed on {count:,} clean source images.")
        return notes

    def _recomputes_statistics(self, mean: Classifier) -> bool:
        clean = self.batch_statistics not in LEARNT and has_batch_statistics(mean)
        return clean and self.rule != "ensemble" and self.data is not None

    def _load(self, number: int) -> Classifier:
        return self.members[number].load(self.network)

    def _accuracy(self, model: Classifier) -> float:
        data = self._require_data()
        validation = data.splits.validation
        assert validation is not None  # noqa: S101  (`_find_data` ensures it)
        return float(evaluate_domain(model, validation, size=data.source.size)["accuracy"])

    def _require_data(self) -> _Data:
        assert self.data is not None  # noqa: S101  (`_find_data` ensures it)
        return self.data

    def _with_statistics(self, mean: Classifier) -> Classifier:
        """Give a mean of weights the batch statistics that belong to it, if it has any."""
        if self._recomputes_statistics(mean):
            recompute_statistics(mean, self._require_data().source.clean)
        elif has_batch_statistics(mean) and self.batch_statistics not in LEARNT:
            self.batch_statistics = "mean of the members'"
            warnings.warn(
                "The images that the runs were trained on are not there: the batch statistics of "
                "the combined model are the mean of the members', not recomputed.",
                PeerdgWarning,
                stacklevel=4,
            )
        return mean

    def description(self, model: Classifier) -> dict[str, Any]:
        """The description of the model, stored beside the weights."""
        about = self.members[0].description
        described = describe_model(
            model,
            backbone=about["backbone"],
            image_size=about["image_size"],
            stored_size=about["stored_size"],
            training=self._training(model),
        )
        described["combined"] = asdict(self._combined())
        return {**described, "format": format_of(described)}

    def _combined(self) -> CombinedFrom:
        members = tuple(
            Member(
                name=member.name,
                weights_sha256=member.description["weights_sha256"],
                method=member.training.get("method"),
                seed=member.training.get("seed"),
                train_seed=member.training.get("train_seed"),
                validation=validation,
                used=used,
                progress=how_far(member.description),
            )
            for member, used, validation in zip(
                self.members, self.used, self.validation, strict=True
            )
        )
        return CombinedFrom(self.rule, members, self.outputs if self.rule == "ensemble" else None)

    def _training(self, model: Classifier) -> dict[str, Any]:
        """What the members' records share, and the accuracy of the combined model."""
        records = [m.training for m, used in zip(self.members, self.used, strict=True) if used]
        if not all(records):
            return {}
        first = records[0]
        shared = first["settings"].items()
        settings = {k: v for k, v in shared if all(r["settings"].get(k) == v for r in records)}
        training: dict[str, Any] = {
            **{name: _joined(records, name) for name in ("data", "source", "weights", "budget")},
            "images": _images(records),
            "fingerprint": _joined(records, "fingerprint"),
            "method": f"{self._how(len(records))}: {_joined(records, 'method')}",
            "seed": first["seed"],
            "settings": settings,
            "selection": GREEDY if self.rule == "greedy" else SELECTION,
        }
        if has_batch_statistics(model) and self.batch_statistics:
            training["batch_statistics"] = self.batch_statistics
        if any(record.get("oracle") for record in records):
            training["oracle"] = True
        return {**training, **self._results(model)}

    def _how(self, count: int) -> str:
        if self.rule == "ensemble":
            return f"mean of the {self.outputs} of {count} runs"
        of = f" of {len(self.members)}" if count < len(self.members) else ""
        return f"mean of the weights of {count}{of} runs"

    def _results(self, model: Classifier) -> dict[str, Any]:
        if self.data is None:
            return {}
        splits, size = self.data.splits, self.data.source.size
        found = evaluate_models({"combined": model}, self.data.domains, size=size)
        results: dict[str, Any] = {
            "accuracy": {r["domain"]: {"accuracy": r["accuracy"], "n": r["n"]} for r in found}
        }
        if splits.validation is not None:
            detail = evaluate_in_detail(model, splits.validation, size=size, worst=0)
            error = {"error": detail.calibration.error, "bins": BINS, "n": detail.n}
            results["calibration"] = error
        return results


def _joined(records: Sequence[Mapping[str, Any]], name: str) -> str:
    return ", ".join(dict.fromkeys(str(record[name]) for record in records))


def _images(records: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Images of every different training set, added up."""
    by_data = {record["fingerprint"]: record["images"] for record in records}
    parts = {part for images in by_data.values() for part in images}
    return {part: sum(i.get(part, 0) for i in by_data.values()) for part in sorted(parts)}


def _require_free(out: Path) -> None:
    """Refuse to replace an existing file or folder, before anything is read."""
    if out.is_dir() and not out.is_symlink() and not any(out.iterdir()):
        return
    if os.path.lexists(out):
        raise OutputError(f"{out} is there already.", hint="Choose a new folder with -o.")


def _find_data(
    members: Sequence[MemberFolder], root: str | None, splits: Splits | None, *, needed: bool
) -> _Data | None:
    """The data that all runs were trained on; None if it is not there.

    Raises:
        ConfigError: If it is `needed` and not there, without validation images, or of other runs.
    """
    try:
        return _load_data(members, root, splits, needs_validation=needed)
    except PeerdgError as error:
        if needed:
            raise ConfigError(
                f"A greedy choice needs the validation images of the runs' source. {error.message}",
                hint=error.hint or "Say where the data is with --root, or use --rule uniform.",
            ) from error
        warnings.warn(
            f"The combined model is not evaluated: {error.message}", PeerdgWarning, stacklevel=4
        )
        return None


def _load_data(
    members: Sequence[MemberFolder],
    root: str | None,
    splits: Splits | None,
    *,
    needs_validation: bool,
) -> _Data:
    fingerprints = {member.training.get("fingerprint") for member in members}
    if len(fingerprints) > 1 or None in fingerprints:
        raise ConfigError("The runs were trained on different images, or did not record which.")
    classes = tuple(members[0].description["classes"])
    place = next(filter(None, (member.run for member in members)), None)
    config = None if place is None else resolve(without_method(read_run_config(place)))
    if splits is not None:
        splits = match_classes(splits, classes)
    elif config is not None:
        splits = load_splits(replace(config, root=root or config.root), classes)
    else:
        raise ConfigError("None of the folders is a run folder, which names its data.")
    if splits.train.fingerprint != next(iter(fingerprints)):
        raise ConfigError("The training images are no longer those of the runs.")
    if needs_validation and splits.validation is None:
        raise ConfigError("The data has no validation images.")
    size = members[0].description["image_size"]
    domains = natural_domains(splits) if config is None else evaluation_domains(config, splits)
    return _Data(splits, Source(splits.train, TransformSettings(size=size)), domains)
