"""One run as reports see it: its options, its records, and what they mean."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from peerdg.augment import REVISION, is_same_augmentation
from peerdg.augment.augment_options import AugmentSettings
from peerdg.averages.average_options import AverageSettings
from peerdg.crafted import DISJOINT
from peerdg.data import CRAFTED, VALIDATION, is_target
from peerdg.data.benchmarks import OWN_DATA
from peerdg.evaluate.fluctuation import (
    BURN_IN_PERIODS,
    RunFluctuation,
    accuracy_series,
    late_mean,
    run_fluctuation,
)
from peerdg.methods.base import MethodSettings
from peerdg.methods.registry import (
    is_reconstruction,
    method_names,
    own_augment_of,
    settings_of,
    stored_settings,
)
from peerdg.models.names import OWN, may_have_batch_norm
from peerdg.options import dotted, to_dict
from peerdg.run.config import DATA_PLACES, MAY_CHANGE
from peerdg.run.folder import Status
from peerdg.run.manifest import Inputs
from peerdg.run.records import NOTHING_LEARNT

# Options in which runs of one variant may differ: their seed, the name they were called by, and
# what does not decide the result. Batch statistics have one only in some networks, see
# `RunResult.batch_statistics`.
WITHOUT_EFFECT = {*MAY_CHANGE, "seed", "recipe", "keep_snapshots", "batch_statistics"}

# Inputs that are no options, as options in names of variants and lists of differences.
NETWORK, OPERATIONS_REVISION = "network", "operations revision"
UNKNOWN = "unknown"
AUGMENT = "augment."  # begins the options of the augmentation, which not every run has
MARK = "†"
RECONSTRUCTED = f"{MARK} reconstruction: neither code nor values were published for this data."
FROZEN = "frozen"  # the rule of networks that were trained with fixed batch statistics
DEPENDS_ON_LENGTH = {"swa", "sma", "swad"}  # averages of a part of the run
_SHORT_HASH = 12  # characters of the hash of a file of weights


@dataclass(frozen=True, eq=False)
class RunResult:
    """One run folder, read.

    Args:
        path: The folder.
        config: Its options, nested as in a config file.
        status: How far it is.
        records: What `metrics.jsonl` holds.
        events: What `events.jsonl` holds.
        profile: Seconds by stage, if they were measured.
        folder: The name of the folder or list, of a run on own images.
        fingerprints: The fingerprint of each part of the data, as far as it is known.
        inputs: Fingerprints of inputs that the config refers to by name.
        shared_with: Other methods that came from the same run, so that its time and memory are
            those of all of them.
        combined_from: The runs that were combined to this result, if it is no single run; it has
            one evaluation, at the end.
        row: What the bench that it is part of calls it; empty if there is none.
        is_taken: Whether that bench took it from the records of another one.
        planned_epochs: Of the whole main phase, if it is presented as of an earlier epoch.
    """

    path: Path
    config: dict[str, Any]
    status: Status
    records: list[dict[str, Any]]
    events: list[dict[str, Any]]
    profile: dict[str, Any] | None = None
    folder: str | None = None
    fingerprints: dict[str, str] = field(default_factory=dict)
    inputs: Inputs = field(default_factory=Inputs)
    shared_with: tuple[str, ...] = ()
    combined_from: tuple[str, ...] = ()
    row: str = ""
    is_taken: bool = False
    planned_epochs: int | None = None

    @property
    def data(self) -> str:
        """Name of the data set, or of the folder or list of a user's own images."""
        benchmark = str(self.config["benchmark"])
        return self.folder or benchmark if benchmark == OWN_DATA else benchmark

    @property
    def train_fingerprint(self) -> str:
        """Fingerprint of the training images; empty if the records do not have it."""
        return self.fingerprints.get("train", "")

    @property
    def evaluation_fingerprints(self) -> dict[str, str]:
        """Fingerprints of the targets, or of the validation images where there are none."""
        names = [f"target:{target}" for target in self.targets] or [VALIDATION]
        return {name: self.fingerprints[name] for name in names if name in self.fingerprints}

    @property
    def method(self) -> str:
        """What people call it: the recipe, the literature's name, or method and average.

        The average is named if it is deployed in place of the trained network, or of the average
        that the method itself has: the row's numbers are those of the average. So is another
        augmentation than the usual one.
        """
        method, kind = str(self.config["method"]), self.average["average.kind"]
        own = None if self.settings is None else self.settings.own_average
        name = method if kind == own else f"{method}+{kind}"
        called = self.config.get("recipe")
        usual = own_augment_of(called or method)
        other = self.augments and usual not in (None, self.augment_kind)
        name = f"{called or name}+{self.augment_kind}" if other else str(called or name)
        return f"{name} (oracle)" if self.saw_targets and "oracle" not in name else name

    @property
    def marked_method(self) -> str:
        """`method`, with a mark if neither code nor values were published for it on this data."""
        return f"{self.method} {MARK}" if self.is_reconstruction else self.method

    @property
    def marked_row(self) -> str:
        """`row`, with the marks that `marked_method` has."""
        name = f"{self.row} (oracle)" if self.saw_targets and "oracle" not in self.row else self.row
        return f"{name} {MARK}" if self.is_reconstruction else name

    @property
    def is_reconstruction(self) -> bool:
        """Whether the method, or the recipe that it was called by, is one on this data."""
        data = str(self.config["benchmark"])
        names = (str(self.config.get("recipe") or ""), str(self.config["method"]))
        return any(is_reconstruction(name, data) for name in names)

    @property
    def saw_targets(self) -> bool:
        """Whether it, or a network that it was given, learnt from targets: it is an oracle."""
        return self.inputs.oracle or bool(self.config.get("oracle"))

    @property
    def augment_kind(self) -> str:
        """The kind of its augmentation, if it augments; before there was a choice, RandAugment."""
        return str(self.config.get("augment", {}).get("kind", AugmentSettings.kind))

    @property
    def own_options(self) -> Mapping[str, Any]:
        """Options of its method's own section."""
        options: Mapping[str, Any] = self.config.get(self.config["method"], {})
        return options

    @cached_property
    def settings(self) -> MethodSettings | None:
        """Its method's settings, if this version has the method."""
        return stored_settings(self.config["method"], self.own_options)

    @property
    def augments(self) -> bool:
        """Whether it was trained on augmented images; methods unknown here count as if."""
        return self.settings is None or self.settings.augments

    @property
    def averages(self) -> bool:
        """Whether it deploys another network than the one that is trained."""
        return self.deployed != self.trained or bool(self.combined_from)

    @property
    def average(self) -> dict[str, Any]:
        """Kind and period of its first average, be it the method's own or one the run asks for."""
        options: Mapping[str, Any] = self.config.get("average", {})
        own = None if self.settings is None else self.settings.own_average
        kind = next(iter(options.get("kind", ())), own)
        return {"average.kind": kind, "average.k": options.get("k", self.k)}

    @property
    def seed(self) -> int:
        """The run's seed."""
        seed: int = self.config["seed"]
        return seed

    @property
    def variant(self) -> str:
        """All options but the seed that decide the result, as a comparable text."""
        whole = self.planned_epochs if self._depends_on_length else None
        options = self.options if whole is None else {**self.options, "planned epochs": whole}
        return json.dumps(options, sort_keys=True, default=str)

    @property
    def options(self) -> dict[str, Any]:
        """All options but the seed that decide the result, and inputs that they only name.

        Sections are flat, {"train.lr": 0.1}.
        """
        decisive = {k: v for k, v in self.config.items() if k not in WITHOUT_EFFECT}
        # Of versions before there was a choice: no average, RandAugment.
        before = {"average": to_dict(AverageSettings()), "augment": {"kind": self.augment_kind}}
        options = dotted(before) | dotted(decisive)
        options = {name: value for name, value in options.items() if name not in DATA_PLACES}
        if self.inputs.weights_sha256 is not None:
            name = Path(self.config["weights"]).name
            options["weights"] = f"{name}@{self.inputs.weights_sha256[:_SHORT_HASH]}"
        for option, digest in self.inputs.models.items():
            name = Path(str(options.get(option))).name
            options[option] = f"{name}@{digest[:_SHORT_HASH]}"
        if self.config["backbone"] == OWN:
            options[NETWORK] = self.inputs.network or UNKNOWN
        if self.augments:
            options[OPERATIONS_REVISION] = self._operations_revision()
        else:
            options = {k: v for k, v in options.items() if not k.startswith(AUGMENT)}
        options["batch_statistics"] = self.batch_statistics
        options.pop("pretrain.epoch_of", None)  # there is no pool yet
        options["train.epoch_of"] = self.epoch_of
        if self.combined_from:
            options["combination"] = self.config.get("recipe")
        return options

    @property
    def _depends_on_length(self) -> bool:
        """Whether its first epochs are other ones in a run of another length."""
        kinds = {*self.config.get("average", {}).get("kind", ())}
        return bool(kinds & DEPENDS_ON_LENGTH) or "lr_step" in self.config.get("train", {})

    @property
    def epoch_of(self) -> str:
        """What set the length of its epochs; before there was a choice, the pool."""
        train = self.config.get("train", {})
        return str(train.get("epoch_of", "pool")) if self.grows_with_pool else "source"

    @property
    def grows_with_pool(self) -> bool:
        """Whether `epoch_of` matters: it learns from a pool, and its steps are not fixed."""
        fixed = self.config.get("train", {}).get("steps_per_epoch") is not None
        return not fixed and self.settings is not None and self.settings.trains_on_pool

    @property
    def fruitless_phases(self) -> list[str]:
        """Phases at whose end the network answered every image alike."""
        found = {e.get("phase") for e in self.events if e.get("event") == NOTHING_LEARNT}
        return [phase for phase in ("pretrain", "train") if phase in found]

    @property
    def has_current_operations(self) -> bool:
        """Whether its augmentation, if it has one, would make the same images today."""
        return not self.augments or self._operations_revision() == REVISION

    def _operations_revision(self) -> int | str:
        """Return the revision of its operations; of those that mean the same, the latest."""
        revision = self.inputs.augmentation
        if revision is None:
            return UNKNOWN
        definition = self.config.get("augment", {}).get("operations") or self.augment_kind
        return REVISION if is_same_augmentation(definition, revision) else revision

    @property
    def has_statistics_rule(self) -> bool:
        """Whether all its networks were evaluated by one rule; runs of old versions were not."""
        recorded = any("batch_statistics" in record for record in self.evaluations)
        return recorded or "batch_statistics" in self.config

    @property
    def batch_statistics(self) -> str | None:
        """Where the statistics of batch normalisation came from; None without batch normalisation.

        Runs that are older than the rule were evaluated as training left them, but for a deployed
        average with the option `bn = "recalibrate"`.
        """
        if self.has_statistics_rule:
            found = {
                str(r["batch_statistics"]) for r in self.evaluations if "batch_statistics" in r
            }
            return " and ".join(sorted(found)) or None
        if not may_have_batch_norm(self.config["backbone"]):
            return None
        mixed = self.own_options.get("bn") == "recalibrate"
        return f"trained, {self.deployed} clean" if mixed else "trained"

    @property
    def seconds(self) -> float:
        """Time of all training epochs, as if nothing had interrupted them.

        An epoch that a resumed run did again counts once. Steps of an epoch that a process took
        before it was stopped have no time, so they count as the others of the phase.
        """
        phases = dict.fromkeys(epoch.get("phase") for epoch in self._epochs)
        return sum(_phase_seconds(self._epochs_of(phase)) for phase in phases)

    @property
    def step_seconds(self) -> float | None:
        """Seconds of the main phase per step; None if they were not recorded."""
        return _per_step(self._epochs_of("train"))

    @cached_property
    def _epochs(self) -> list[dict[str, Any]]:
        """The event of each epoch; of one that was done again, the last."""
        found: dict[Any, dict[str, Any]] = {}
        for number, event in enumerate(self.events):
            if event.get("event") == "epoch":
                place = (event.get("run"), event.get("phase"), event.get("epoch"))
                found[number if event.get("epoch") is None else place] = event
        return list(found.values())

    def _epochs_of(self, phase: str | None) -> list[dict[str, Any]]:
        return [epoch for epoch in self._epochs if epoch.get("phase") == phase]

    @property
    def peak_memory(self) -> int | None:
        """The most bytes that a process of the run had at once; None if that was not recorded."""
        found = [e["peak_memory"] for e in self.events if e.get("peak_memory") is not None]
        return max(found, default=None)

    @property
    def steps(self) -> int | None:
        """Optimizer steps of the main phase; None if the records do not have them."""
        found = {  # an epoch that a resumed run did again counts once
            e.get("epoch"): e.get("steps")
            for e in self.events
            if e.get("event") == "epoch" and e.get("phase") == "train"
        }
        known = [int(steps) for steps in found.values() if steps is not None]
        return sum(known) if known and len(known) == len(found) else None

    @cached_property
    def evaluations(self) -> list[dict[str, Any]]:
        """Evaluation records in order."""
        return [r for r in self.records if r["kind"] == "evaluation"]

    @property
    def targets(self) -> list[str]:
        """Target domains in the order they were evaluated."""
        return list(filter(is_target, dict.fromkeys(r["domain"] for r in self.evaluations)))

    @property
    def crafted(self) -> list[str]:
        """Crafted validation domains in the order they were evaluated."""
        domains = dict.fromkeys(r["domain"] for r in self.evaluations)
        return [domain for domain in domains if domain.startswith(CRAFTED)]

    @property
    def models(self) -> list[str]:
        """Observed models."""
        return list(dict.fromkeys(r["model"] for r in self.evaluations))

    @property
    def trained(self) -> str:
        """Name of the trained network; records without this list it first."""
        known = self.models or ["model"]
        return self.inputs.trained if self.inputs.trained in known else known[0]

    @property
    def deployed(self) -> str:
        """Name of the deployed network; records without this list it last."""
        known = self.models or ["model"]
        return self.inputs.deployed if self.inputs.deployed in known else known[-1]

    @property
    def period(self) -> int:
        """Epochs between the evaluations that count for fluctuation.

        That is k, where there is one and an evaluation after every k-th epoch.
        """
        evaluated = int(self.config["evaluate_every"])
        return math.lcm(self.k or evaluated, evaluated)

    @property
    def k(self) -> int | None:
        """The period of the method in epochs; None if it has none."""
        k = self.own_options.get(self.period_option)
        return None if k is None else int(k)

    @property
    def period_option(self) -> str:
        """The option of its method that sets the period; empty if it has none."""
        method = self.config["method"]
        return settings_of(method).period_option or "" if method in method_names() else ""

    def final(self, model: str) -> dict[str, float]:
        """Return the last accuracy of `model` on each domain."""
        return {r["domain"]: r["accuracy"] for r in self.evaluations if r["model"] == model}

    def images(self, *domains: str) -> int | None:
        """Count the images of the smallest of these domains; None if they were not recorded."""
        found = {r["domain"]: r.get("n") for r in self.evaluations if r["domain"] in domains}
        return min((n for n in found.values() if n is not None), default=None)

    def crafted_mean(self, model: str) -> float | None:
        """Average the last accuracies over the crafted families that have a vote, if any."""
        final = self.final(model)
        voting = [final[domain] for domain in self.voting if domain in final]
        return sum(voting) / len(voting) if voting else None

    @property
    def voting(self) -> list[str]:
        """Evaluated crafted domains of the families that RandAugment does not train on."""
        return [domain for domain in self.crafted if domain.removeprefix(CRAFTED) in DISJOINT]

    def score(self, model: str) -> float | None:
        """Score a run by its target mean, or without targets by its crafted mean."""
        return self.target_mean(model) if self.targets else self.crafted_mean(model)

    def target_mean(self, model: str) -> float:
        """Average the last accuracies over the targets, unweighted."""
        final = self.final(model)
        return sum(final[t] for t in self.targets) / len(self.targets)

    def fluctuation(
        self, model: str, *, every: int | None = None, burn_in_periods: int = BURN_IN_PERIODS
    ) -> RunFluctuation | None:
        """Compute the fluctuation of `model` over evaluations every k epochs; None without them.

        Args:
            model: An observed network.
            every: Epochs of a period in place of k, a multiple of those between evaluations.
            burn_in_periods: First periods that are left out.
        """
        series = accuracy_series(
            self.records,
            model=model,
            every=every or self.period,
            burn_in_periods=burn_in_periods,
        )
        return run_fluctuation(series)

    def late_mean(self, model: str, *, every: int | None = None) -> float | None:
        """Average the target mean over the last evaluations every k epochs; None if they are few.

        It depends less on the epoch at which training ends than the target mean does.

        Args:
            model: An observed network.
            every: Epochs of a period in place of k, a multiple of those between evaluations.
        """
        period = every or self.period
        return late_mean(
            accuracy_series(self.records, model=model, every=period, burn_in_periods=0)
        )


def is_evaluated(records: Iterable[Mapping[str, Any]], epoch: int) -> bool:
    """Whether networks were evaluated after this epoch of the main phase."""
    return any(r["epoch"] == epoch for r in records if r["kind"] == "evaluation")


def as_of(run: RunResult, epoch: int) -> RunResult:
    """Present a run as it was after an epoch of its main phase, as if that had been the last.

    Its memory stays that of the whole run.

    Args:
        run: Finished, or evaluated after that epoch at least.
        epoch: One after which it was evaluated.
    """

    def is_later(entry: Mapping[str, Any]) -> bool:
        return entry.get("phase") == "train" and (entry.get("epoch") or 0) > epoch

    epochs = run.config["train"]["epochs"]
    train = {**run.config["train"], "epochs": min(epoch, epochs)}
    return replace(
        run,
        status="done",
        planned_epochs=run.planned_epochs or (epochs if epoch < epochs else None),
        config={**run.config, "train": train},
        records=[record for record in run.records if not is_later(record)],
        events=[event for event in run.events if not is_later(event)],
    )


def _per_step(epochs: Sequence[Mapping[str, Any]]) -> float | None:
    """Compute seconds per step over those steps whose time is known; None if there are none."""
    steps = sum(_timed(epoch) for epoch in epochs)
    return sum(float(epoch["seconds"]) for epoch in epochs) / steps if steps else None


def _phase_seconds(epochs: Sequence[Mapping[str, Any]]) -> float:
    """Add up the seconds of all epochs; steps whose time is not known count as the others."""
    without_time = sum((epoch.get("steps") or 0) - _timed(epoch) for epoch in epochs)
    known = sum(float(epoch["seconds"]) for epoch in epochs)
    return known + without_time * (_per_step(epochs) or 0.0)


def _timed(epoch: Mapping[str, Any]) -> int:
    """Count the steps that the seconds of an epoch are of."""
    steps, timed = epoch.get("steps") or 0, epoch.get("timed_steps")
    return steps if timed is None else min(int(timed), steps)
