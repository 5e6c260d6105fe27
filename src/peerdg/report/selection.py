"""Model selection in reports: what each rule chooses, and its cost on the targets."""

from peerdg.crafted import DISJOINT, FAMILIES
from peerdg.data import CRAFTED, VALIDATION
from peerdg.evaluate.selection import RULES, Choice, Rule, Trajectory, select, select_variant
from peerdg.evaluate.statistics import accuracy_spread, spread
from peerdg.report.compare import CRAFTED_MEAN, Groups
from peerdg.report.runs import RunResult
from peerdg.terminal import Table, markdown_text

ORACLE = "oracle (sees targets)"


def choices(run: RunResult) -> dict[Rule, Choice]:
    """Apply each rule to the deployed model of a run. Combined runs have one epoch only."""
    return {} if run.combined_from else select(run.evaluations, model=run.deployed)


def selection_table(groups: Groups) -> Table:
    """Tabulate the deployed model's target mean and regret under each rule, over seeds."""
    chosen = {name: [choices(run) for run in group] for name, group in groups.items()}
    rules = [rule for rule in RULES if any(rule in c for group in chosen.values() for c in group)]
    columns = ["target mean by selection"]
    for rule in rules:
        columns += [ORACLE] if rule == "oracle" else [rule, "regret"]
    rows = []
    for name, group in chosen.items():
        cells = [name]
        for rule in rules:
            made = [c[rule] for c in group if rule in c]
            cells.append(spread([c.target for c in made if c.target is not None]))
            if rule != "oracle":
                cells.append(spread([c.regret for c in made if c.regret is not None]))
        rows.append(cells)
    return Table(columns, rows)


def crafted_table(groups: Groups) -> Table:
    """Tabulate source validation, crafted validation and families at the last epoch, over seeds."""
    evaluated = {domain for group in groups.values() for run in group for domain in run.crafted}
    families = [family for family in FAMILIES if CRAFTED + family in evaluated]
    rows = []
    for name, group in groups.items():
        finals = [run.final(run.deployed) for run in group]
        clean = [final[VALIDATION] for final in finals if VALIDATION in final]
        cells = [name, accuracy_spread(clean, group[0].size(VALIDATION))]
        for chosen in (DISJOINT, FAMILIES, *((family,) for family in families)):
            own = [[f[CRAFTED + c] for c in chosen if CRAFTED + c in f] for f in finals]
            cells.append(spread([sum(values) / len(values) for values in own if values]))
        rows.append(cells)
    return Table(["accuracy %", "source val", CRAFTED_MEAN, "all families", *families], rows)


def selection_section(groups: Groups) -> list[str]:
    """Compose the part of a page about model selection."""
    runs = [run for group in groups.values() for run in group]
    lines = ["## Model selection", ""]
    if any(run.targets for run in runs):
        lines += [selection_table(groups).markdown()]
    used = {rule for run in runs for rule in choices(run)}
    lines += [f"- {rule}: {meaning}." for rule, meaning in RULES.items() if rule in used]
    lines += [f"- {markdown_text(sentence)}" for sentence in preferred_settings(groups)]
    if any(run.crafted for run in runs):
        lines += [
            "",
            "Crafted validation at the last epoch. `crafted val` is the mean over the evaluated "
            f"families that RandAugment does not train on ({', '.join(DISJOINT)}):",
            "",
            crafted_table(groups).markdown(),
        ]
    return [*lines, ""]


def preferred_settings(groups: Groups) -> list[str]:
    """Name the setting of each method that crafted validation prefers at the last epoch."""
    by_method: dict[str, dict[str, list[RunResult]]] = {}
    for name, group in groups.items():
        if all(run.voting for run in group):
            by_method.setdefault(group[0].method, {})[name] = list(group)
    sentences = []
    for variants in by_method.values():
        # Scores of different images cannot be compared.
        evaluated = {
            (*run.voting, *run.targets, run.fingerprints.get(VALIDATION), run.size(*run.voting))
            for group in variants.values()
            for run in group
        }
        if len(variants) < 2 or len(evaluated) > 1:
            continue
        choice = select_variant({
            name: [Trajectory.from_records(r.evaluations, model=r.deployed) for r in group]
            for name, group in variants.items()
        })  # fmt: skip
        cost = "" if choice.regret is None else f". Its regret is {choice.regret:.1f} points"
        sentences.append(
            f"of {', '.join(variants)}, crafted validation prefers {choice.variant} "
            f"({choice.scores[choice.variant]:.1f}){cost}."
        )
    return sentences
