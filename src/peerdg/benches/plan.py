"""What a bench trains: which runs there are, and from which of them each method has its row.

Averages only watch a training, so methods that differ in nothing but the average they deploy come
from one run that is watched by all of them; the network of that run is the method without an
average. A combination has several runs of each seed. A variant is a method with options of its own
under a name of its own. Free of torch, so that a misspelt method is answered at once.
"""

import json
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from peerdg.averages.average_options import KINDS, OPTIONS_OF
from peerdg.benches.variants import Variant, average_of, known_methods, objective_of, split_variants
from peerdg.data.benchmarks import BENCHMARKS, OWN_DATA
from peerdg.errors import ConfigError
from peerdg.methods.recipes import COMBINATIONS, Combination
from peerdg.methods.registry import method_names
from peerdg.options import Change, did_you_mean, difference, merge
from peerdg.run.config import MAY_CHANGE, RunConfig, resolve

_DECIDED_BY_BENCH = {
    "method": "--methods", "recipe": "--methods", "seed": "--seeds", "train_seed": "--seeds",
}  # fmt: skip


@dataclass(frozen=True)
class Member:
    """A method of a bench.

    Args:
        method: Its name, as it was asked for; of a variant, the variant's.
        config: What `peerdg train --method` runs for it, or for a run of a combination; the seed
            is that of any run.
        combination: What its runs are combined to, if it is one.
    """

    method: str
    config: RunConfig
    combination: Combination | None = None

    @property
    def average(self) -> str | None:
        """The average that it deploys, if one was asked for, as a shared run observes it.

        A window of the snapshots is one of the further means of that run: `last-3`, `start-4`.
        """
        kind = next(iter(self.config.average.kind), None)
        return (self.config.average.window or kind) if kind == "snapshots" else kind

    @property
    def watched(self) -> tuple[str, ...]:
        """All averages that watch its training, as a shared run observes them."""
        own = () if self.average is None else (self.average,)
        return (*own, *self.config.average.kind[1:], *self.config.average.also)

    @property
    def is_window(self) -> bool:
        """Whether a shared run has its average among the further means of snapshots."""
        return self.average not in (None, *self.config.average.kind)


@dataclass(frozen=True)
class PlannedRun:
    """One training.

    Args:
        name: Of its folder.
        config: All its options.
        group: The methods that have their rows from it.
    """

    name: str
    config: RunConfig
    group: "Group"


@dataclass(frozen=True)
class Group:
    """Methods that come from the same run of each seed, or one method that is several runs.

    Args:
        members: One, or several that differ only in the average they deploy.
    """

    members: tuple[Member, ...]

    @property
    def name(self) -> str:
        """Their names, the one without an average first."""
        return "+".join(member.method for member in self.members)

    @property
    def is_shared(self) -> bool:
        """Whether one run is several methods."""
        return len(self.members) > 1

    @cached_property
    def config(self) -> RunConfig:
        """The run: the method's own, or one that all averages watch."""
        first = self.members[0].config
        if not self.is_shared:
            return first
        observed = dict.fromkeys(name for member in self.members for name in member.watched)
        together: dict[str, Any] = {
            # With windows alone there is nothing to deploy in place of the network.
            "kind": tuple(name for name in observed if name in KINDS) or ("snapshots",),
            "also": tuple(name for name in observed if name not in KINDS),
        }
        for member in self.members:
            names = [name for kind in member.config.average.kind for name in OPTIONS_OF[kind]]
            used = ("k",) if member.is_window else names
            together |= {name: getattr(member.config.average, name) for name in used}
        return replace(first, recipe=None, average=replace(first.average, **together))

    @property
    def combination(self) -> Combination | None:
        """What its runs are combined to, if it is one."""
        return self.members[0].combination

    def runs(self, seed: int) -> tuple[PlannedRun, ...]:
        """List the runs with this seed: one, or those of a combination."""
        if self.combination is None:
            return (PlannedRun(self.result(seed), replace(self.config, seed=seed), self),)
        return tuple(
            PlannedRun(f"{self.result(seed)}-{number}", self._combined_config(number, seed), self)
            for number in range(self.combination.members)
        )

    def result(self, seed: int) -> str:
        """Name the result of a seed: the run, or the combined model."""
        return f"{self.name}-{seed}"

    def _combined_config(self, number: int, seed: int) -> RunConfig:
        combination, config = self.combination, self.config
        assert combination is not None  # noqa: S101  (narrows the type)
        options = combination.options(number, seed=seed, lr=config.train.lr)
        return replace(
            config,
            seed=options["seed"],
            train_seed=options.get("train_seed"),
            train=replace(config.train, **options.get("train", {})),
        )


@dataclass(frozen=True)
class Plan:
    """A grid of methods and seeds.

    Args:
        methods: In the order of the table.
        seeds: Each method is trained with all of them.
        options: What all runs are given, nested as in a config file.
        members: The methods with their options.
        notes: What was chosen for images of one's own, and why.
    """

    methods: tuple[str, ...]
    seeds: tuple[int, ...]
    options: Mapping[str, Any]
    members: Mapping[str, Member]
    notes: tuple[str, ...] = ()

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """Methods by the run they come from, in the order of the first of each."""
        found: dict[tuple[str, int], list[Member]] = {}
        for member in self.members.values():
            text, copy = _training_of(member), 0
            while not _may_join(member, found.get((text, copy), ())):
                copy += 1
            found.setdefault((text, copy), []).append(member)
        return tuple(Group(tuple(sorted(group, key=_order_in_group))) for group in found.values())

    @cached_property
    def runs(self) -> tuple[PlannedRun, ...]:
        """Every training, all groups of a seed before the next seed."""
        return tuple(
            run for seed in self.seeds for group in self.groups for run in group.runs(seed)
        )

    def runs_of(self, group: Group) -> list[PlannedRun]:
        """List every run of a group."""
        return [run for seed in self.seeds for run in group.runs(seed)]

    @property
    def data(self) -> str:
        """Name of the data set."""
        return next(iter(self.members.values())).config.benchmark

    def check_until(self, until: int | None) -> int | None:
        """Check the epoch that runs are trained to, and return it; None if none has more epochs.

        Raises:
            ConfigError: If a run is not evaluated after it, or is made of finished runs.
        """
        configs = {name: member.config for name, member in self.members.items()}
        if until is None or until >= max(c.train.epochs for c in configs.values()):
            return None
        if until < 1:
            raise ConfigError(f"--until is {until}; at least one epoch is needed.")
        for name, config in configs.items():
            if self.members[name].combination is not None:
                raise ConfigError(
                    f"'{name}' is made of finished runs; there is none after epoch {until}.",
                    hint=f"Leave '{name}' out of --methods, or --until out.",
                )
            if until % config.evaluate_every and until < config.train.epochs:
                raise ConfigError(
                    f"'{name}' is evaluated every {config.evaluate_every} epochs, so not after "
                    f"epoch {until}.",
                    hint=f"Give --until a multiple of {config.evaluate_every}.",
                )
        return operator.index(until)


def make_plan(options: Mapping[str, Any], *, methods: Sequence[str], seeds: Sequence[int]) -> Plan:
    """Plan a bench, and refuse everything that can be refused without looking at data.

    Args:
        options: What all runs are given, nested as in a config file: data, budget, sections. The
            section of a method is for the methods that train by it. `variant` may hold a table of
            variants, see `benches.variants`.
        methods: Objectives, recipes, combinations and variants.
        seeds: Which seeds.

    Raises:
        ConfigError: For an unknown method (with the nearest name), one that is named twice, or
            options that do not fit.
    """
    common, variants = split_variants(options)
    _check_methods(methods, variants)
    _check_seeds(seeds)
    _check_options(common, {m: variants[m].method if m in variants else m for m in methods})
    members, notes = {}, {}
    for method in methods:
        variant = variants.get(method, Variant(method))
        combination = COMBINATIONS.get(variant.method)
        trained = variant.method if combination is None else combination.member
        own = merge(_options_of(trained, common), variant.options)
        config, chosen = _resolve({**own, "method": trained})
        if config.name != trained and method not in variants:
            raise ConfigError(
                f"With these options, '{method}' is not what its name stands for: its average or "
                "augmentation is given.",
                hint=f"Leave them out, or leave '{method}' out of --methods.",
            )
        members[method] = Member(method, config, combination)
        notes.update(dict.fromkeys(chosen))
    plan = Plan(tuple(methods), tuple(seeds), dict(options), members, tuple(notes))
    _check_names(plan)
    return plan


def plan_changes(old: Plan, new: Plan) -> list[Change]:
    """List the differences of two plans that decide the results of runs.

    More or fewer methods and seeds do not: a bench may grow. One that has none of the methods is
    another bench.
    """
    common = old.members.keys() & new.members.keys()
    if not common:
        return [Change("methods", ",".join(old.methods), ",".join(new.methods))]
    found: dict[str, Change] = {}
    for method in common:
        before, now = (plan.members[method].config.tables() for plan in (old, new))
        found |= {c.key: c for c in difference(before, now) if c.key not in MAY_CHANGE}
        trained = [_trained_as(plan.members[method]) for plan in (old, new)]
        if old.members[method].combination != new.members[method].combination:
            found[f"{method}.method"] = Change(f"{method}.method", *trained)
    return [found[key] for key in sorted(found)]


def _trained_as(member: Member) -> str:
    """The combination, recipe or method that a row stands for."""
    combined = (name for name, made in COMBINATIONS.items() if made == member.combination)
    return next(combined, member.config.name)


def _resolve(options: Mapping[str, Any]) -> tuple[RunConfig, list[str]]:
    """Resolve the config of one method; return what its images decided, too."""
    if options.get("benchmark") == OWN_DATA:
        # Late: it looks at images, so it imports torch.
        from peerdg.run.config import resolve_own_data

        config, choices = resolve_own_data(options)
        return config, choices.explain(config.tables())
    config = resolve(options)
    BENCHMARKS[config.benchmark].refuse_unused_root(config.root)
    return config, []


def _training_of(member: Member) -> str:
    """Name all that decides what is trained; averages that only watch do not.

    A method with an average of its own learns from it, so its kind stays part of the text. A
    combination needs the deployed models of its runs, so it shares none.
    """
    config = member.config
    if member.combination is not None:
        return member.method
    tables = config.tables(unset=True)
    del tables["recipe"]
    if config.method_settings.own_average is None:
        del tables["average"]
    return json.dumps(tables, sort_keys=True, default=str)


def _may_join(member: Member, group: Sequence[Member]) -> bool:
    """Whether one run can observe the average of a method beside those of `group`.

    Of two methods with one kind of average, and other options of it, each has its run; but windows
    of the same snapshots can all be observed at once.
    """
    averages = {other.average for other in group}
    periods = {m.config.average.k for m in (member, *group) if "snapshots" in m.config.average.kind}
    return member.average not in averages and len(periods) <= 1


def _order_in_group(member: Member) -> int:
    """Sort key of a group: the network itself, then averages in the order of their list."""
    kind = next(iter(member.config.average.kind), None)
    return -1 if kind is None else list(KINDS).index(kind)


def _options_of(method: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Filter the options of this method: all but the sections of others."""
    others = {*method_names()} - {objective_of(method)}
    own = {key: value for key, value in options.items() if key not in others}
    if isinstance(own.get("average"), Mapping):
        own["average"] = _average_options(method, own["average"])
    return own


def _average_options(method: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Filter the options of the average that this method deploys; empty if it has none."""
    kind = average_of(method)
    if kind is None:
        return {}
    others = {name for other, names in OPTIONS_OF.items() if other != kind for name in names}
    return {name: value for name, value in options.items() if name not in others}


def _check_methods(methods: Sequence[str], variants: Mapping[str, Variant]) -> None:
    known = (*known_methods(), *variants)
    if not methods:
        raise ConfigError("No method is given.", hint="Name some with --methods a,b,c.")
    for method in methods:
        if method not in known:
            raise ConfigError(f"Unknown method '{method}'.", hint=did_you_mean(method, known))
    if twice := _repeated(methods):
        raise ConfigError(f"The method '{twice}' is named twice.", hint="Name each of them once.")


def _check_names(plan: Plan) -> None:
    """Refuse runs that would be one folder."""
    if twice := _repeated(run.name for run in plan.runs):
        raise ConfigError(
            f"Two runs of the bench would be called '{twice}'.", hint="Rename a variant."
        )


def _check_seeds(seeds: Sequence[int]) -> None:
    if not seeds or min(seeds) < 0:
        raise ConfigError("A bench needs at least one seed, and no seed below 0.")
    if (twice := _repeated(seeds)) is not None:
        raise ConfigError(f"The seed {twice} is named twice.")


def _check_options(options: Mapping[str, Any], methods: Mapping[str, str]) -> None:
    """Refuse options that no row has; `methods` are those that the rows train by."""
    for key, flag in _DECIDED_BY_BENCH.items():
        if key in options:
            raise ConfigError(f"'{key}' is decided by {flag}.")
    if options.get("average", {}).get("kind"):
        raise ConfigError(
            "'average.kind' is decided by --methods.",
            hint="Name the methods that deploy an average; `peerdg methods` lists them.",
        )
    kinds = set(map(average_of, methods.values()))
    for kind, names in OPTIONS_OF.items():
        for name in {*names} & {*options.get("average", {})} if kind not in kinds else ():
            raise ConfigError(
                f"average.{name} is an option of the average '{kind}', which no method of the "
                "bench has.",
                hint=f"Leave average.{name} out, or name a method with that average.",
            )
    used = set(map(objective_of, methods.values()))
    unused = [key for key in options if key in method_names() and key not in used]
    if unused:
        raise ConfigError(
            f"Options of '{unused[0]}' are given, but no method of the bench trains by it.",
            hint=f"Remove them, or add it: --methods {','.join((*methods, unused[0]))}",
        )


def _repeated(values: Iterable[Any]) -> Any:
    """Find the first repeated value; None if there is none."""
    seen = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None
