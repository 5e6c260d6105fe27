"""Plan a bench: its runs, and the table rows that come from each run.

Averages do not affect training. Methods that differ only in the deployed average therefore share
one run with all these averages, and its trained network is the method without an average. A
combination has several runs per seed. A variant is a method with its own name and options:

    [variant.peer-k8]
    method = "peer"
    peer = { k = 8 }
"""

import json
import re
import tomllib
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
from peerdg.options import convert, did_you_mean, dotted, merge, nested, read_toml
from peerdg.run.config import RunConfig, resolve, resolve_own_data

VARIANT = "variant"  # key of the table with variants
SEEDS = 5
_VARIANT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")  # part of a folder name
_VARIANT_EXAMPLE = f'Write [{VARIANT}.NAME], then method = "...", then its own options.'
_TABLES = ("options", VARIANT, "question", "ranking", "published")  # tables of a plan file
_SAME_FOR_ALL = {"recipe": "--methods", "seed": "--seeds", "train_seed": "--seeds"}

Term = tuple[str, ...]  # a row, or two rows to subtract
Pair = tuple[Term, Term]  # two rows or differences to compare
Questions = Mapping[str, Sequence[Pair]]
MIN_RANKED = 3  # minimum number of rows in a ranking


@dataclass(frozen=True)
class Published:
    """Published accuracies in percent, by row and target, with their source."""

    source: str
    accuracy: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True)
class Study:
    """Additional sections of a bench report."""

    questions: Questions = field(default_factory=dict)  # pairs of rows to compare, by question
    # rows to rank, by title of the ranking
    rankings: Mapping[str, Sequence[str]] = field(default_factory=dict)
    published: Published | None = None


@dataclass(frozen=True)
class PlannedMethod:
    """A row of a bench."""

    method: str  # name of the row: a method or a variant
    config: RunConfig  # options of its runs, except the seed
    combination: Combination | None = None  # rule for several runs per seed

    @property
    def average(self) -> str | None:
        """Name of the deployed average in a shared run.

        A window of snapshots is an additional average in that run, e.g. `last-3` or `start-4`.
        """
        kind = next(iter(self.config.average.kind), None)
        return (self.config.average.window or kind) if kind == "snapshots" else kind

    @property
    def averages(self) -> tuple[str, ...]:
        """Names of all averages of the method in a shared run."""
        own = () if self.average is None else (self.average,)
        return (*own, *self.config.average.kind[1:], *self.config.average.also)

    @property
    def is_window(self) -> bool:
        """Whether the deployed average is a window of snapshots."""
        return self.average not in (None, *self.config.average.kind)


@dataclass(frozen=True)
class PlannedRun:
    """A run to train."""

    name: str  # name of its folder
    config: RunConfig
    group: "SharedRun"  # methods whose rows come from it
    bench_seed: int  # seed of the rows; runs of a combination may have different seeds


@dataclass(frozen=True)
class SharedRun:
    """Methods that share one run per seed, or one method with several runs per seed."""

    members: tuple[PlannedMethod, ...]  # if several, they differ only in the deployed average

    @property
    def name(self) -> str:
        """Names of the methods, the one without an average first."""
        return "+".join(member.method for member in self.members)

    @cached_property
    def config(self) -> RunConfig:
        """Options of the run, with the averages of all methods."""
        first = self.members[0].config
        if len(self.members) == 1:
            return first
        averages = dict.fromkeys(name for member in self.members for name in member.averages)
        average: dict[str, Any] = {
            # If all averages are windows, deploy the mean of all snapshots.
            "kind": tuple(name for name in averages if name in KINDS) or ("snapshots",),
            "also": tuple(name for name in averages if name not in KINDS),
        }
        for member in self.members:
            names = [name for kind in member.config.average.kind for name in KINDS[kind]]
            used = ("k",) if member.is_window else names
            average |= {name: getattr(member.config.average, name) for name in used}
        return replace(first, recipe=None, average=replace(first.average, **average))

    @property
    def combination(self) -> Combination | None:
        """Rule that combines the runs of a seed, if there are several."""
        return self.members[0].combination

    def result(self, seed: int) -> str:
        """Return the name of the run or combined model for a seed."""
        return f"{self.name}-{seed}"

    def runs(self, seed: int) -> tuple[PlannedRun, ...]:
        """Return the runs for a seed: one, or several for a combination."""
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
    options: Mapping[str, Any]  # options of all runs, nested as in a config file, and variants
    notes: tuple[str, ...] = ()  # sentences about options chosen for the user's own images

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(self.members)

    @cached_property
    def groups(self) -> tuple[SharedRun, ...]:
        """Methods grouped by run, in the order of the first method in each group."""
        groups: dict[tuple[str, int], list[PlannedMethod]] = {}
        for member in self.members.values():
            training, copy = _training_of(member), 0
            while not _may_join(member, groups.get((training, copy), ())):
                copy += 1
            groups.setdefault((training, copy), []).append(member)
        kinds = list(KINDS)  # the network itself comes first, then averages in this order
        for group in groups.values():
            group.sort(key=lambda m: [kinds.index(kind) for kind in m.config.average.kind[:1]])
        return tuple(SharedRun(tuple(group)) for group in groups.values())

    @cached_property
    def runs(self) -> tuple[PlannedRun, ...]:
        """All runs, ordered by seed."""
        groups = product(self.seeds, self.groups)
        return tuple(run for seed, group in groups for run in group.runs(seed))

    def only(self, methods: Sequence[str]) -> "Plan":
        """Return a copy of the plan with only the given methods."""
        _check_methods(methods, self.members)
        return replace(self, members={name: self.members[name] for name in methods})

    def check_until(self, until: int | None) -> int | None:
        """Check the epoch to train to, and return it, or None if no run is longer."""
        epochs = max(member.config.train.epochs for member in self.members.values())
        if until is None or until >= epochs:
            return None
        if until < 1:
            raise ConfigError(f"--until is {until}, but must be at least 1.")
        for name, member in self.members.items():
            if member.combination is not None:
                raise ConfigError(f"'{name}' combines finished runs. Remove it or --until.")
            every = member.config.evaluate_every
            if until % every and until < member.config.train.epochs:
                raise ConfigError(
                    f"'{name}' is evaluated every {every} epochs, not after epoch {until}.",
                    hint=f"Set --until to a multiple of {every}.",
                )
        return until


def make_plan(options: Mapping[str, Any], *, methods: Sequence[str], seeds: Sequence[int]) -> Plan:
    """Plan a bench, and check everything that can be checked without the data.

    `options` apply to all runs and are nested as in a config file. The section of a method applies
    to all rows that are trained with it. The key `variant` has a table of variants.
    """
    common = {key: value for key, value in options.items() if key != VARIANT}
    variants = _read_variants(options.get(VARIANT, {}))
    _check_methods(methods, (*known_methods(), *variants))
    if not seeds or any(type(seed) is not int or seed < 0 for seed in seeds):
        raise ConfigError("A bench needs at least one seed, and seeds cannot be negative.")
    _refuse_repeated("seed", seeds)
    for key, flag in {"method": "--methods", "average.kind": "--methods", **_SAME_FOR_ALL}.items():
        if dotted(common).get(key):
            raise ConfigError(f"In a bench, set '{key}' with {flag}.")
    members, notes = {}, {}
    unused = set(dotted(common))
    for name in methods:
        method, own = variants.get(name, (name, {}))
        combination = COMBINATIONS.get(method)
        trained = method if combination is None else combination.member
        shared = _options_of(trained, common)
        unused -= set(dotted(shared))
        config, chosen = _resolve({**merge(shared, own), "method": trained})
        if config.select != "last":
            raise ConfigError(
                "A bench evaluates the last epoch of every run.",
                hint="Leave out --select. The report lists the epochs that each rule chooses.",
            )
        if config.name != trained and name not in variants:
            raise ConfigError(
                f"'{name}' is defined by its average and augmentation, which these options change.",
                hint=f"Remove these options, or remove '{name}' from --methods.",
            )
        members[name] = PlannedMethod(name, config, combination)
        notes.update(dict.fromkeys(chosen))
    if unused:
        raise ConfigError(
            f"No method of the bench has the option '{min(unused)}'.",
            hint="Remove it, or add a method that has it.",
        )
    plan = Plan(members, tuple(seeds), dict(options), tuple(notes))
    _refuse_repeated("run", [run.name for run in plan.runs])
    return plan


def sweep_rows(
    options: Mapping[str, Any], methods: Sequence[str], sweeps: Sequence[str]
) -> tuple[dict[str, Any], list[str]]:
    """Replace each row by one row per combination of values.

    Args:
        options: Options of all runs, and variants.
        methods: Rows of the table.
        sweeps: Options with their values, e.g. `peer.w=0.01,0.1,1`. Rows of other methods stay.

    Returns:
        The options with more variants, and the rows.
    """
    variants, rows = dict(options.get(VARIANT, {})), []
    tables = {row: variants.get(row, {"method": row}) for row in methods}
    read = [_read_sweep(text) for text in sweeps]
    for name, _ in read:
        if [each for each, _ in read].count(name) > 1:
            raise ConfigError(f"--sweep {name} is given twice.", hint="List all values in one.")
        if not any(_applies(name, table) for table in tables.values()):
            raise ConfigError(f"No method of the bench has the option {name}.")
    for row, table in tables.items():
        used = [values for name, values in read if _applies(name, table)]
        for chosen in product(*used):
            label = "-".join([row, *(f"{n.rpartition('.')[2]}-{text}" for n, text, _ in chosen)])
            rows.append(label)
            if chosen:
                own = nested({name: value for name, _, value in chosen})
                variants[label] = merge(table, own)
    return {**options, **({VARIANT: variants} if variants else {})}, rows


def _read_sweep(text: str) -> tuple[str, list[tuple[str, str, Any]]]:
    """Parse `peer.w=0.01,1`. Return the option, and its name, text and value for each value."""
    flag, equals, values = text.partition("=")
    section, dot, key = flag.rpartition(".")
    name = f"{section}{dot}{key.replace('-', '_')}"
    try:
        parsed = [(name, each, _toml_value(each)) for each in values.split(",") if each]
    except tomllib.TOMLDecodeError:
        parsed = []
    if not (flag and equals and parsed):
        raise ConfigError(
            f"Cannot read --sweep {text}.", hint="Write for example --sweep train.lr=0.001,0.01"
        )
    return name, parsed


def _toml_value(text: str) -> Any:
    is_word = re.fullmatch(r"[A-Za-z][\w-]*", text) and text not in ("true", "false", "inf", "nan")
    return text if is_word else tomllib.loads(f"value = {text}")["value"]


def _applies(option: str, table: Mapping[str, Any]) -> bool:
    """Return whether an option belongs to a row, or to all rows."""
    section, trained = option.partition(".")[0], str(table["method"])
    recipe = RECIPES.get(trained)
    return section not in method_names() or section == (recipe.method if recipe else trained)


def known_methods() -> tuple[str, ...]:
    """Return the names of methods, recipes and combinations."""
    return (*method_names(), *RECIPES, *COMBINATIONS)


def _resolve(options: Mapping[str, Any]) -> tuple[RunConfig, list[str]]:
    """Resolve the config of one method, and explain options chosen for the user's images."""
    if options.get("benchmark") == OWN_DATA:
        config, choices = resolve_own_data(options)
        return config, choices.explain(config.tables())
    config = resolve(options)
    BENCHMARKS[config.benchmark].refuse_unused_root(config.root)
    return config, []


def _training_of(member: PlannedMethod) -> str:
    """Return a key that is the same for all methods that can share a run.

    Averages do not affect training, except a method's own average, which guides it. A combination
    does not share runs, because it needs their deployed models.
    """
    if member.combination is not None:
        return member.method
    tables = member.config.tables(unset=True)
    del tables["recipe"]
    if member.config.method_settings.own_average is None:
        del tables["average"]
    return json.dumps(tables, sort_keys=True, default=str)


def _may_join(member: PlannedMethod, group: Sequence[PlannedMethod]) -> bool:
    """Return whether the run of `group` can also evaluate the average of `member`.

    Methods with different options for the same average need separate runs. One run can evaluate
    several windows of the same snapshots.
    """
    averages = {other.average for other in group}
    periods = {m.config.average.k for m in (member, *group) if "snapshots" in m.config.average.kind}
    return member.average not in averages and len(periods) <= 1


def _options_of(method: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Drop the sections of other methods, and the options of other averages."""
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
        raise ConfigError("No methods were given.", hint="Name some with --methods a,b,c.")
    for method in methods:
        if method not in known:
            raise ConfigError(f"Unknown method '{method}'.", hint=did_you_mean(str(method), known))
    _refuse_repeated("method", methods)


def _refuse_repeated(kind: str, values: Sequence[Any]) -> None:
    for value in values:
        if values.count(value) > 1:
            raise ConfigError(f"The {kind} '{value}' is given twice.", hint="Name each once.")


def _read_variants(tables: Any) -> dict[str, tuple[str, dict[str, Any]]]:
    """Split each variant into its method and its own options."""
    variants = {}
    for name, table in (tables if isinstance(tables, Mapping) else {"": tables}).items():
        if not isinstance(table, Mapping) or not isinstance(table.get("method"), str):
            raise ConfigError(f"The variant '{name}' has no method.", hint=_VARIANT_EXAMPLE)
        if not _VARIANT_NAME.fullmatch(name) or name in known_methods():
            raise ConfigError(
                f"{name!r} is not a valid variant name.",
                hint="Use up to 60 letters, digits, dots, dashes and underscores. Start with a "
                "letter or digit, and do not use the name of a method.",
            )
        if table["method"] not in known_methods():
            raise ConfigError(
                f"Unknown method '{table['method']}' in the variant '{name}'.",
                hint=did_you_mean(table["method"], known_methods()),
            )
        for key in _SAME_FOR_ALL.keys() & table.keys():
            raise ConfigError(f"'{name}' cannot set '{key}', which applies to the whole bench.")
        own = {key: value for key, value in table.items() if key != "method"}
        variants[name] = (table["method"], own)
    return variants


@dataclass(frozen=True, kw_only=True)
class PlanFile:
    """Contents of a plan file."""

    seeds: tuple[int, ...] = tuple(range(SEEDS))
    methods: tuple[str, ...] = ()  # rows of the table, variants last
    reference: str | None = None  # row to compare the others with
    options: Mapping[str, Any] = field(default_factory=dict)  # options of all runs, and variants
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
        raise ConfigError(f"Variants must be outside 'options' in {path}.", hint=_VARIANT_EXAMPLE)
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
    """Read the report sections: questions, rankings and published numbers."""
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
            f"[question], [ranking] or [published] in {path} is invalid.", hint="See docs/bench.md."
        ) from error
    compared = [term for pairs in questions.values() for pair in pairs for term in pair]
    for name in (*published, *chain(*compared, *rankings.values())):
        if name not in rows:
            raise ConfigError(f"{path} has no row '{name}'.", hint=did_you_mean(str(name), rows))
    return Study(questions, rankings, Published(source, accuracy) if accuracy else None)


def _term(value: Any) -> Term:
    """Parse a row, or a difference between two rows."""
    if isinstance(value, str):
        return (value,)
    first, second = value
    return first, second
