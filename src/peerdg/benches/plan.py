"""Plan a bench: which runs it trains, and which rows of its table come from each.

Averages do not change a training. So methods that differ only in the average they deploy come from
one run with all these averages, and the network of that run is the method without an average. A
combination has several runs per seed. A variant is a method with its own name and options:

    [variant.peer-k8]
    method = "peer"
    peer = { k = 8 }
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, product
from pathlib import Path
from typing import Any

from peerdg.averages.average_options import KINDS
from peerdg.data.benchmarks import BENCHMARKS, OWN_DATA
from peerdg.errors import ConfigError
from peerdg.methods.recipes import COMBINATIONS, RECIPES, Combination
from peerdg.methods.registry import method_names, settings_of
from peerdg.options import convert, did_you_mean, dotted, merge, read_toml
from peerdg.run.config import RunConfig, resolve, resolve_own_data

VARIANT = "variant"  # the key of their table among the options of a bench
SEEDS = 5
_VARIANT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")  # it becomes part of a folder name
_VARIANT_EXAMPLE = f'Write [{VARIANT}.NAME], then method = "...", then its own options.'
_TABLES = ("options", VARIANT, "question", "ranking", "published")  # of a plan file
_SAME_FOR_ALL = {"recipe": "--methods", "seed": "--seeds", "train_seed": "--seeds"}

Term = tuple[str, ...]  # a row, or two that are subtracted
Pair = tuple[Term, Term]  # a row or difference, and the one it is compared with
Questions = Mapping[str, Sequence[Pair]]
MIN_RANKED = 3  # rows of a ranking


@dataclass(frozen=True)
class Published:
    """Published accuracies in percent, by row and target, with their source."""

    source: str
    accuracy: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Study:
    """Further sections of the report of a bench."""

    questions: Questions = field(default_factory=dict)  # pairs of rows to compare, by question
    rankings: Mapping[str, Sequence[str]] = field(default_factory=dict)  # rows to put in order
    published: Published | None = None


@dataclass(frozen=True)
class PlannedMethod:
    """A row of a bench."""

    method: str  # name of the row: a method, or a variant
    config: RunConfig  # of its run, or of each run of a combination, with any seed
    combination: Combination | None = None  # of several runs per seed

    @property
    def average(self) -> str | None:
        """The average that it deploys, under the name that a shared run evaluates it by.

        A window of the snapshots is one of the further means of that run: `last-3`, `start-4`.
        """
        kind = next(iter(self.config.average.kind), None)
        return (self.config.average.window or kind) if kind == "snapshots" else kind

    @property
    def averages(self) -> tuple[str, ...]:
        """All averages of its training, under the names that a shared run evaluates them by."""
        own = () if self.average is None else (self.average,)
        return (*own, *self.config.average.kind[1:], *self.config.average.also)

    @property
    def is_window(self) -> bool:
        """Whether a shared run has its average among the further means of snapshots."""
        return self.average not in (None, *self.config.average.kind)


@dataclass(frozen=True)
class PlannedRun:
    """One training."""

    name: str  # of its folder
    config: RunConfig
    group: "SharedRun"  # methods whose rows come from it
    bench_seed: int  # of the rows; runs of a combination may have other ones


@dataclass(frozen=True)
class SharedRun:
    """Methods that come from the same run of each seed, or one method that has several runs."""

    members: tuple[PlannedMethod, ...]  # several differ only in the average they deploy

    @property
    def name(self) -> str:
        """Their names, the one without an average first."""
        return "+".join(member.method for member in self.members)

    @cached_property
    def config(self) -> RunConfig:
        """Options of the run: those of the only method, or with the averages of all."""
        first = self.members[0].config
        if len(self.members) == 1:
            return first
        averages = dict.fromkeys(name for member in self.members for name in member.averages)
        together: dict[str, Any] = {
            # With windows alone there is nothing to deploy in place of the network.
            "kind": tuple(name for name in averages if name in KINDS) or ("snapshots",),
            "also": tuple(name for name in averages if name not in KINDS),
        }
        for member in self.members:
            names = [name for kind in member.config.average.kind for name in KINDS[kind]]
            used = ("k",) if member.is_window else names
            together |= {name: getattr(member.config.average, name) for name in used}
        return replace(first, recipe=None, average=replace(first.average, **together))

    @property
    def combination(self) -> Combination | None:
        """How the runs of a seed are combined, if there are several."""
        return self.members[0].combination

    def result(self, seed: int) -> str:
        """Name the result of a seed: the run, or the combined model."""
        return f"{self.name}-{seed}"

    def runs(self, seed: int) -> tuple[PlannedRun, ...]:
        """List the runs with this seed: one, or those of a combination."""
        if self.combination is None:
            return (PlannedRun(self.result(seed), replace(self.config, seed=seed), self, seed),)
        runs = []
        for number in range(self.combination.members):
            options = self.combination.options(number, seed=seed, lr=self.config.train.lr)
            config = replace(
                self.config,
                seed=options["seed"],
                train_seed=options.get("train_seed"),
                train=replace(self.config.train, **options.get("train", {})),
            )
            runs.append(PlannedRun(f"{self.result(seed)}-{number}", config, self, seed))
        return tuple(runs)


@dataclass(frozen=True)
class Plan:
    """Methods and seeds of a bench."""

    members: Mapping[str, PlannedMethod]  # by name, in the order of the table
    seeds: tuple[int, ...]
    options: Mapping[str, Any]  # of all runs, nested as in a config file, with the variants
    notes: tuple[str, ...] = ()  # sentences about what was chosen for the user's own images

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(self.members)

    @cached_property
    def groups(self) -> tuple[SharedRun, ...]:
        """Methods by the run they come from, in the order of the first of each."""
        groups: dict[tuple[str, int], list[PlannedMethod]] = {}
        for member in self.members.values():
            training, copy = _training_of(member), 0
            while not _may_join(member, groups.get((training, copy), ())):
                copy += 1
            groups.setdefault((training, copy), []).append(member)
        return tuple(SharedRun(tuple(sorted(group, key=_order))) for group in groups.values())

    @cached_property
    def runs(self) -> tuple[PlannedRun, ...]:
        """Every training, all groups of a seed before the next seed."""
        groups = product(self.seeds, self.groups)
        return tuple(run for seed, group in groups for run in group.runs(seed))

    def only(self, methods: Sequence[str]) -> "Plan":
        """Keep these methods."""
        _check_methods(methods, self.members)
        return replace(self, members={name: self.members[name] for name in methods})

    def check_until(self, until: int | None) -> int | None:
        """Check the epoch that runs are trained to, and return it, or None if all end before."""
        epochs = max(member.config.train.epochs for member in self.members.values())
        if until is None or until >= epochs:
            return None
        if until < 1:
            raise ConfigError(f"--until is {until}; at least one epoch is needed.")
        for name, member in self.members.items():
            if member.combination is not None:
                raise ConfigError(f"'{name}' is made of finished runs: leave it or --until out.")
            every = member.config.evaluate_every
            if until % every and until < member.config.train.epochs:
                raise ConfigError(
                    f"'{name}' is evaluated every {every} epochs, so not after epoch {until}.",
                    hint=f"Give --until a multiple of {every}.",
                )
        return until


def make_plan(options: Mapping[str, Any], *, methods: Sequence[str], seeds: Sequence[int]) -> Plan:
    """Plan a bench, and refuse everything that can be refused without looking at data.

    Options are those of all runs, nested as in a config file. The section of a method is for the
    methods that train by it. `variant` may hold a table of variants.
    """
    common = {key: value for key, value in options.items() if key != VARIANT}
    variants = _read_variants(options.get(VARIANT, {}))
    _check_methods(methods, (*known_methods(), *variants))
    if not seeds or any(type(seed) is not int or seed < 0 for seed in seeds):
        raise ConfigError("A bench needs at least one seed, and no seed below 0.")
    _refuse_repeated("seed", seeds)
    for key, flag in {"method": "--methods", "average.kind": "--methods", **_SAME_FOR_ALL}.items():
        if dotted(common).get(key):
            raise ConfigError(f"'{key}' is decided by {flag}.")
    members, notes = {}, {}
    unused = set(dotted(common))
    for name in methods:
        method, own = variants.get(name, (name, {}))
        combination = COMBINATIONS.get(method)
        trained = method if combination is None else combination.member
        shared = _options_of(trained, common)
        unused -= set(dotted(shared))
        config, chosen = _resolve({**merge(shared, own), "method": trained})
        if config.name != trained and name not in variants:
            raise ConfigError(
                f"With these options, '{name}' is not what its name stands for: its average or "
                "augmentation is given.",
                hint=f"Leave them out, or leave '{name}' out of --methods.",
            )
        members[name] = PlannedMethod(name, config, combination)
        notes.update(dict.fromkeys(chosen))
    if unused:
        raise ConfigError(
            f"No method of the bench has the option '{min(unused)}'.",
            hint="Leave it out, or add a method that has it.",
        )
    plan = Plan(members, tuple(seeds), dict(options), tuple(notes))
    _refuse_repeated("run", [run.name for run in plan.runs])
    return plan


def known_methods() -> tuple[str, ...]:
    """List everything that `peerdg methods` lists."""
    return (*method_names(), *RECIPES, *COMBINATIONS)


def _resolve(options: Mapping[str, Any]) -> tuple[RunConfig, list[str]]:
    """Resolve the config of one method. Return what its images decided, too."""
    if options.get("benchmark") == OWN_DATA:
        config, choices = resolve_own_data(options)
        return config, choices.explain(config.tables())
    config = resolve(options)
    BENCHMARKS[config.benchmark].refuse_unused_root(config.root)
    return config, []


def _training_of(member: PlannedMethod) -> str:
    """Describe everything that decides what is trained. Averages that only follow do not.

    A method with its own average learns from it, so that average counts. A combination needs the
    deployed models of its runs, so it shares none.
    """
    if member.combination is not None:
        return member.method
    tables = member.config.tables(unset=True)
    del tables["recipe"]
    if member.config.method_settings.own_average is None:
        del tables["average"]
    return json.dumps(tables, sort_keys=True, default=str)


def _may_join(member: PlannedMethod, group: Sequence[PlannedMethod]) -> bool:
    """Whether one run can evaluate the average of a method beside those of `group`.

    Two methods with the same kind of average and other options of it need two runs, but one run
    can evaluate any windows of the same snapshots.
    """
    averages = {other.average for other in group}
    periods = {m.config.average.k for m in (member, *group) if "snapshots" in m.config.average.kind}
    return member.average not in averages and len(periods) <= 1


def _order(member: PlannedMethod) -> list[int]:
    """Sort key in a group: the network itself, then averages in the order of their list."""
    return [list(KINDS).index(kind) for kind in member.config.average.kind[:1]]


def _options_of(method: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the sections of other methods, and the options of other averages."""
    recipe = RECIPES.get(method)
    objective = method if recipe is None else recipe.method
    own = {k: v for k, v in options.items() if k == objective or k not in method_names()}
    if isinstance(own.get("average"), Mapping):
        kind = (recipe and recipe.average) or settings_of(objective).own_average
        others = {name for other, names in KINDS.items() if other != kind for name in names}
        average = {} if kind is None else own["average"]
        own["average"] = {name: value for name, value in average.items() if name not in others}
    return own


def _check_methods(methods: Sequence[str], known: Iterable[str]) -> None:
    if not methods:
        raise ConfigError("No method is given.", hint="Name some with --methods a,b,c.")
    for method in methods:
        if method not in known:
            raise ConfigError(f"Unknown method '{method}'.", hint=did_you_mean(str(method), known))
    _refuse_repeated("method", methods)


def _refuse_repeated(kind: str, values: Sequence[Any]) -> None:
    for value in values:
        if values.count(value) > 1:
            raise ConfigError(f"The {kind} '{value}' is there twice.", hint="Name each once.")


def _read_variants(tables: Any) -> dict[str, tuple[str, dict[str, Any]]]:
    """Split each variant into its method and its own options."""
    variants = {}
    for name, table in (tables if isinstance(tables, Mapping) else {"": tables}).items():
        if not isinstance(table, Mapping) or not isinstance(table.get("method"), str):
            raise ConfigError(f"The variant '{name}' names no method.", hint=_VARIANT_EXAMPLE)
        if not _VARIANT_NAME.fullmatch(name) or name in known_methods():
            raise ConfigError(
                f"A variant cannot be called {name!r}.",
                hint="Up to 60 letters, digits, dots, dashes and underscores, a letter or digit "
                "first, and not the name of a method.",
            )
        if table["method"] not in known_methods():
            raise ConfigError(
                f"Unknown method '{table['method']}' of the variant '{name}'.",
                hint=did_you_mean(table["method"], known_methods()),
            )
        for key in _SAME_FOR_ALL.keys() & table.keys():
            raise ConfigError(f"'{key}' is the same for the whole bench, not for '{name}'.")
        own = {key: value for key, value in table.items() if key != "method"}
        variants[name] = (table["method"], own)
    return variants


@dataclass(frozen=True, kw_only=True)
class PlanFile:
    """The contents of a plan file."""

    seeds: tuple[int, ...] = tuple(range(SEEDS))
    methods: tuple[str, ...] = ()  # rows of the table, those of the variants last
    reference: str | None = None  # row that differences are to
    options: Mapping[str, Any] = field(default_factory=dict)  # of all runs, with the variants
    study: Study = field(default_factory=Study)


def read_plan_file(path: Path) -> PlanFile:
    """Read a plan file. `make_plan` checks its options."""
    tables = read_toml(path)
    known = ("methods", "seeds", "reference", *_TABLES)
    for key in tables:
        if key not in known:
            raise ConfigError(f"Unknown key '{key}' in {path}.", hint=did_you_mean(key, known))
    for key in _TABLES:
        if not isinstance(tables.setdefault(key, {}), Mapping):
            raise ConfigError(f"'{key}' in {path} must be a table.", hint="See docs/bench.md.")
    options, variants, seeds = tables["options"], tables[VARIANT], tables.get("seeds", SEEDS)
    if VARIANT in options:
        raise ConfigError(f"Variants stand outside of 'options' in {path}.", hint=_VARIANT_EXAMPLE)
    named = convert(tables.get("methods", []), tuple[str, ...], "methods")
    if isinstance(seeds, int):
        seeds = list(range(seeds))
    methods = tuple(dict.fromkeys((*named, *variants)))
    return PlanFile(
        seeds=convert(seeds, tuple[int, ...], "seeds"),
        methods=methods,
        reference=convert(tables.get("reference"), str | None, "reference"),
        options={**options, VARIANT: variants} if variants else options,
        study=_read_study(tables, methods, path),
    )


def _read_study(tables: Mapping[str, Any], rows: Sequence[str], path: Path) -> Study:
    """Read the sections of a plan that are about its report."""
    published = dict(tables["published"])
    source = published.pop("source", None)
    try:
        questions = {
            text: [(_term(first), _term(second)) for first, second in pairs]
            for text, pairs in tables["question"].items()
        }
        rankings = {text: tuple(ranked) for text, ranked in tables["ranking"].items()}
        accuracy = {row: {t: float(v) for t, v in of.items()} for row, of in published.items()}
        small = [ranked for ranked in rankings.values() if len({*ranked}) < MIN_RANKED]
        if small or (accuracy and not isinstance(source, str)):
            raise ValueError
    except (TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"A section of {path} is not as it should be.", hint="See docs/bench.md."
        ) from error
    compared = [term for pairs in questions.values() for pair in pairs for term in pair]
    for name in (*published, *chain(*compared, *rankings.values())):
        if name not in rows:
            raise ConfigError(f"'{name}' is no row of {path}.", hint=did_you_mean(str(name), rows))
    return Study(questions, rankings, Published(source, accuracy) if accuracy else None)


def _term(value: Any) -> Term:
    """Read a row, or the difference of two."""
    if isinstance(value, str):
        return (value,)
    first, second = value
    return first, second
