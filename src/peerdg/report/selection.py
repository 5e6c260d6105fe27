"""What each rule of model selection would have chosen, and what that cost on the targets."""

from collections.abc import Sequence
from typing import Any

from peerdg.crafted import DISJOINT, FAMILIES
from peerdg.data import CRAFTED, VALIDATION
from peerdg.evaluate.selection import RULES, Choice, Rule, Trajectory, select, select_variant
from peerdg.evaluate.statistics import accuracy_spread, spread
from peerdg.report.result import RunResult
from peerdg.report.tables import CRAFTED_MEAN
from peerdg.report.variants import MANY, by_variant
from peerdg.terminal import Table, markdown_text

ORACLE = "oracle (sees targets)"


def selection_table(runs: Sequence[RunResult]) -> Table:
    """Tabulate the deployed model's target mean and regret under each rule, over seeds."""
    chosen = {
        name: [c for run in group if (c := choices(run))]
        for name, group in by_variant(runs).items()
    }
    rules = [rule for rule in RULES if any(rule in c for group in chosen.values() for c in group)]
    columns = ["target mean by selection"]
    for rule in rules:
        columns += [ORACLE] if rule == "oracle" else [rule, "regret"]
    rows = []
    for name, group in chosen.items():
        cells = [name]
        for rule in rules:
            of_rule = [c[rule] for c in group if rule in c]
            cells.append(spread([c.target for c in of_rule if c.target is not None]))
            if rule != "oracle":
                cells.append(spread([c.regret for c in of_rule if c.regret is not None]))
        rows.append(cells)
    return Table(columns, rows)


def choices_table(runs: Sequence[RunResult]) -> Table:
    """Tabulate epoch, score, target mean and regret of every rule in every run."""
    rows = [
        [f"{name}, seed {run.seed}", ORACLE if rule == "oracle" else rule, *_cells(choice)]
        for name, group in by_variant(runs).items()
        for run in group
        for rule, choice in choices(run).items()
    ]
    return Table(["run", "rule", "epoch", "score", "target mean", "regret"], rows)


def crafted_table(runs: Sequence[RunResult]) -> Table:
    """Tabulate source validation, crafted validation and families at the last epoch, over seeds."""
    groups = by_variant(runs)
    finals = {n: [run.final(run.deployed) for run in group] for n, group in groups.items()}
    evaluated = {domain for group in finals.values() for final in group for domain in final}
    families = [family for family in FAMILIES if CRAFTED + family in evaluated]
    rows = []
    for name, group in finals.items():
        clean = [final[VALIDATION] for final in group if VALIDATION in final]
        images = groups[name][0].images(VALIDATION)
        means = [_crafted_means(group, chosen) for chosen in (DISJOINT, FAMILIES)]
        each = [_crafted_means(group, (family,)) for family in families]
        clean_text = accuracy_spread(clean, images)
        rows.append([name, clean_text, *map(spread, means), *map(spread, each)])
    return Table(["accuracy %", "source val", CRAFTED_MEAN, "all families", *families], rows)


def selection_section(runs: Sequence[RunResult]) -> list[str]:
    """Compose the part of a report about model selection."""
    has_targets = any(run.targets for run in runs)
    lines = ["## Model selection", ""]
    if has_targets:
        lines += [selection_table(runs).markdown()]
    used = {rule for group in by_variant(runs).values() for run in group for rule in choices(run)}
    lines += [f"- {rule}: {meaning}." for rule, meaning in RULES.items() if rule in used]
    lines += [f"- {markdown_text(sentence)}" for sentence in settings_findings(runs)]
    if any(run.crafted for run in runs):
        lines += [
            "",
            "Crafted validation at the last epoch; `crafted val` is the mean over the families "
            f"that RandAugment does not train on ({', '.join(DISJOINT)}), as far as they were "
            "evaluated, and is what `crafted-val` selects by:",
            "",
            crafted_table(runs).markdown(),
        ]
    if len(by_variant(runs)) <= MANY:
        lines += ["", "### Chosen epochs", "", choices_table(runs).markdown()]
    return [*lines, ""]


def settings_findings(runs: Sequence[RunResult]) -> list[str]:
    """Say which of several settings of a method crafted validation prefers at the last epoch."""
    by_method: dict[str, dict[str, list[Trajectory]]] = {}
    images: dict[str, set[tuple[str, Any]]] = {}
    for name, group in by_variant(runs).items():
        if all(run.crafted for run in group):
            images.setdefault(group[0].method, set()).update(map(_crafted_from, group))
            found = [Trajectory.from_records(run.records, model=run.deployed) for run in group]
            by_method.setdefault(group[0].method, {})[name] = found
    sentences = []
    for method, variants in by_method.items():
        evaluated = {
            (run.scored_by("crafted-val"), run.targets) for g in variants.values() for run in g
        }
        evaluated_alike = len(evaluated) == len(images[method]) == 1
        if len(variants) < 2 or not evaluated_alike or not next(iter(evaluated))[0]:
            continue  # scores of different images cannot be compared
        choice = select_variant(variants)
        cost = "" if choice.regret is None else f"; its regret is {choice.regret:.1f} points"
        sentences.append(
            f"of {', '.join(variants)}, crafted validation prefers {choice.variant} "
            f"({choice.scores[choice.variant]:.1f}){cost}."
        )
    return sentences


def choices(run: RunResult) -> dict[Rule, Choice]:
    """Apply each rule to the deployed model of a run; combined runs have one epoch only."""
    if run.combined_from:
        return {}
    return select(run.records, model=run.deployed)


def _crafted_from(run: RunResult) -> tuple[str, Any]:
    """Name what decides which images are distorted: the validation images, and their number."""
    return run.fingerprints.get(VALIDATION, ""), run.config.get("crafted_images")


def _cells(choice: Choice) -> list[str]:
    numbers = (choice.score, choice.target, choice.regret)
    return [str(choice.epoch), *("-" if n is None else f"{n:.1f}" for n in numbers)]


def _crafted_means(finals: Sequence[dict[str, float]], families: Sequence[str]) -> list[float]:
    """Average over the families that were evaluated, for each run."""
    found = [[f[CRAFTED + name] for name in families if CRAFTED + name in f] for f in finals]
    return [sum(values) / len(values) for values in found if values]
