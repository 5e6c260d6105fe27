"""Assemble the HTML pages: for runs, and for the evaluation of a model."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import tomli_w
import torch

from peerdg.augment.augment_options import make_augment
from peerdg.augment.view import resize
from peerdg.data import CRAFTED, VALIDATION
from peerdg.data.domain import Domain
from peerdg.data.splits import Splits
from peerdg.errors import ConfigError, DataError, PeerdgError
from peerdg.evaluate.accuracy import DomainReport, evaluate_in_detail
from peerdg.evaluate.statistics import few_images
from peerdg.files import read_json
from peerdg.models.classifier import Classifier
from peerdg.models.stored import load_stored
from peerdg.report.card import (
    LOOKED_AT,
    CardRow,
    DomainDetails,
    card_rows,
    domain_details,
)
from peerdg.report.compare import (
    CRAFTED_MEAN,
    Groups,
    answers_table,
    by_variant,
    require_comparable,
    variant_differences,
)
from peerdg.report.curves import curves, policies
from peerdg.report.evaluation import summary_table
from peerdg.report.html import data_uri, forest, picture, write_html
from peerdg.report.runs import RunResult, as_of
from peerdg.report.table import (
    ReportTable,
    crafted_table,
    fluctuation_table,
    make_table,
    profile_table,
    selection_table,
    targets_table,
)
from peerdg.rng import generator_for
from peerdg.run.config import RunConfig, resolve
from peerdg.run.manifest import count_known_images
from peerdg.run.prepare import evaluation_domains, load_splits
from peerdg.terminal import Table, command

_VIEWED = 6  # augmented images per policy
_POLICIES = 8
_LEAST_CRAFTED_LOSS = 10  # points between validation and distorted copies that are worth a remark
_ANALYSES = ("drift", "cka", "connectivity", "otdd")


@dataclass(frozen=True)
class CloserLook:
    """A run's robustness card, with images if its model and data are at hand."""

    run: RunResult
    rows: Sequence[CardRow]
    missing: str = ""  # why there are no images
    details: Sequence[DomainDetails] = ()
    views: Sequence[Mapping[str, Any]] = ()  # augmented images, by policy


def write_runs_page(
    runs: Sequence[RunResult],
    path: Path,
    *,
    title: str | None = None,
    table: ReportTable | None = None,
    groups: Groups | None = None,
    failures: Mapping[str, str] | None = None,
) -> Path:
    """Write a page about one run, or about several that are comparable.

    `table` and `groups` are those of a bench. Unfinished runs are only listed.
    """
    groups = by_variant(runs) if groups is None else {n: g for n, g in groups.items() if g}
    # A single run is shown as far as it is trained.
    begun = [run for run in runs if run.evaluations]
    if not groups and len(begun) == 1:
        groups = {begun[0].method: begun}
    if not groups:
        raise ConfigError("No run is finished yet.", hint="`peerdg runs` shows their status.")
    shown = [run for group in groups.values() for run in group]
    require_comparable(shown)
    table = table or make_table(groups)
    labeled = table.labeled(groups)
    score = CRAFTED_MEAN if all(run.voting for run in shown) else VALIDATION
    best = max(shown, key=lambda run: _source_score(run, score))
    closer = look_closer(best)
    single = shown[0] if len(shown) == 1 else None
    unfinished = [run for run in runs if run.status != "done"]
    several = len(groups) > 1
    data = curves(labeled)
    return write_html(
        path,
        "runs.html.jinja",
        data,
        title=title or (f"{best.method} on {best.data}" if single else f"{best.data}: runs"),
        happened=_happened(closer, table, single),
        advice=_advice(closer.run, shown),
        score=score,
        closer=closer,
        single=single,
        table=table,
        rows=table.table() if several or len(shown) > 1 else None,
        forest=forest(table),
        notes=[*table.notes(), *table.cautions, *variant_differences(groups)],
        failures={**{str(run.path): _state(run) for run in unfinished}, **(failures or {})},
        answers={
            question: answers_table([a for a in table.answers if a.question == question])
            for question in dict.fromkeys(a.question for a in table.answers)
        },
        targets=targets_table(labeled) if shown[0].targets else None,
        crafted=crafted_table(labeled) if score == CRAFTED_MEAN else None,
        fluctuation=fluctuation_table(labeled) if shown[0].targets else None,
        selection=selection_table(labeled) if shown[0].targets else None,
        analyses=_analyses(best),
        times=_times(single) if single else table.further(),
        profile=profile_table(single) if single and single.profile else None,
        config=tomli_w.dumps(_without_unset(best.config)).splitlines(),
        repeat=_repeat(best),
        software="; ".join(sorted({name for run in shown for name in run.software})),
        looked_at=LOOKED_AT,
        thinned=data["thinned"],
    )


def write_evaluation_page(
    details: Sequence[DomainReport], domains: Mapping[str, Domain], path: Path, *, title: str
) -> Path:
    """Write a page with a card, confusion matrices and mistakes, after `evaluate_in_detail`."""
    accuracy = {detail.domain: (detail.accuracy, detail.n) for detail in details}
    parts = [domain_details(detail, domains[detail.domain], detail.domain) for detail in details]
    seen = [d.domain for d in details if d.overlap and d.overlap.trained]
    return write_html(
        path,
        "evaluation.html.jinja",
        {},
        title=title,
        rows=card_rows(accuracy, domains, augmented=False, seen=seen),
        details=parts,
        summary=summary_table(details),
    )


def write_paper_page(path: Path, shown: Sequence[tuple[Any, Any, Any]]) -> Path:
    """Write a page with items of the paper: each with its numbers and tables."""
    files = {item.id: path.with_name(f"{item.id}.png") for item, _, _ in shown}
    return write_html(
        path,
        "paper.html.jinja",
        {},
        title="Tables and figures of the PEER paper",
        shown=shown,
        figures={n: data_uri(f.read_bytes(), "png") for n, f in files.items() if f.is_file()},
    )


def look_closer(run: RunResult) -> CloserLook:
    """Load the model and the images of a run, and look at calibration, mistakes and views."""
    at = replace(as_of(run, run.deployed_epoch), status=run.status)
    records = [record for record in at.evaluations if record["model"] == at.deployed]
    accuracy = {record["domain"]: (record["accuracy"], record["n"]) for record in records}
    card = partial(card_rows, accuracy, augmented=run.augments)
    seen = run.targets if run.oracle else []
    try:
        folder, model, size, config, splits = _load(run)
    except PeerdgError as error:
        return CloserLook(at, card({}, seen=seen), missing=error.message)
    domains = evaluation_domains(config, splits)
    details = []
    for name, domain in domains.items():
        if not name.startswith(CRAFTED):
            few = domain.sample(LOOKED_AT)
            detail = evaluate_in_detail(model, few, size=size)
            detail = replace(detail, overlap=count_known_images(folder, few))
            details.append(domain_details(detail, few, name))
            if detail.overlap and detail.overlap.trained:
                seen.append(name)
    if VALIDATION in domains:  # the images that the distorted copies are made from
        domains[VALIDATION] = domains[VALIDATION].sample(config.crafted_images or None)
    return CloserLook(at, card(domains, seen=seen), "", details, _views(run, config, splits.train))


def _load(run: RunResult) -> tuple[Path, Classifier, int, RunConfig, Splits]:
    """Load the deployed model, and the images if they are those of the training."""
    if run.stored is None:
        shared = f" Its run stores the model of {run.shared_with[0]}." if run.shared_with else ""
        raise ConfigError(f"The model of {run.path} is not at hand.{shared}")
    if run.planned_epochs is not None:
        raise ConfigError("The stored model is that of a later epoch.")
    config = resolve(run.config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of unfinished runs: the page says so
        model, description = load_stored(run.stored)
        splits = load_splits(config, model.classes)
    if splits.fingerprint != run.fingerprints:
        raise DataError("The images have changed since the training.")
    return run.stored, model, description["image_size"], config, splits


def _views(run: RunResult, config: RunConfig, source: Domain) -> list[dict[str, Any]]:
    """Augment a few training images with each policy of the run."""
    if not config.augments:
        return []
    size = config.transform.size or source.image_size[0]
    images = resize(source.images[torch.linspace(0, len(source) - 1, _VIEWED).long()], size)
    augment = make_augment(config.augment, seed=config.main_seed, size=size)
    views = [{"text": "original images", "images": [picture(image) for image in images]}]
    drawn = policies(run) or [{"epoch": 0, "text": config.augment.kind}]
    for policy in drawn[:: -(-len(drawn) // _POLICIES)]:
        augment.redraw(policy["epoch"] // config.method_settings.period)
        made = augment(images, generator_for(config.main_seed, "page", policy["epoch"]))
        text = f"from epoch {policy['epoch']}: {policy['text']}"
        views.append({"text": text, "images": [picture(image) for image in made]})
    return views


# Text.


def _happened(closer: CloserLook, table: ReportTable, single: RunResult | None) -> str:
    run = closer.run
    images = run.images.get("train")
    source = f"{images:,} images of {run.data}" if images else run.data
    if single is None:
        seeds = len({seed for row in table.rows for seed in row.seeds})
        kind = "methods" if len({row.method for row in table.rows}) > 1 else "settings"
        text = f"{len(table.rows)} {kind} were trained on {source}, with "
        text += f"{seeds} seeds each. " if seeds > 1 else "one seed. "
        ranked = {row.label: row.score.mean for row in table.rows if row.score}
        if ranked:
            first = max(ranked, key=ranked.__getitem__)
            text += f"The highest {table.score} is {ranked[first]:.1f} %, by {first}."
        return text
    places = {"source": "validation images", "seen": "{}, which it has seen"}
    parts = [
        f"{row.accuracy:.1f} % on " + places.get(row.kind, "the unseen domain {}").format(row.name)
        for row in closer.rows
        if row.kind in ("source", "seen", "target")
    ]
    crafted = run.mean(run.deployed, run.voting)
    if crafted is not None:
        parts.insert(1, f"{crafted:.1f} % on distorted copies of them")
    text = f"{run.method} was trained on {source}."
    if parts:
        *most, last = parts
        reached = f"{', '.join(most)}{' and ' if most else ''}{last}"
        text += f" The model of epoch {_epoch(run)} reaches {reached}."
    return text


def _advice(best: RunResult, shown: Sequence[RunResult]) -> list[str]:
    """Say what to do next."""
    if best.status != "done":
        return [f"The run is not finished. Continue it with `{command('resume', best.path)}`."]
    sentences = []
    if not best.targets:
        evaluate = command("evaluate", best.stored or "RUN", "FOLDER")
        sentences.append(
            "There were no unseen domains to test on. Distorted copies show what breaks the model, "
            f"but real images decide: `{evaluate}`."
        )
    crafted, clean = best.mean(best.deployed, best.voting), best.final(best.deployed)
    enough = not few_images(best.size(*best.voting))
    if crafted is not None and VALIDATION in clean and enough:
        loss = clean[VALIDATION] - crafted
        if loss > _LEAST_CRAFTED_LOSS:
            sentences.append(
                f"Accuracy falls by {loss:.0f} points on distorted copies. Expect a loss of this "
                "size or more on images that look different."
            )
    if len(shown) == 1:
        sentences.append("One run is one sample. `peerdg bench` compares methods over seeds.")
    elif len({run.seed for run in shown}) == 1:
        sentences.append("One seed is not conclusive. Compare the methods with at least three.")
    if best.stored is not None:
        sentences.append(f"Use the model with `{command('predict', best.stored, 'IMAGE')}`.")
    return sentences


def _source_score(run: RunResult, score: str) -> float:
    if score == CRAFTED_MEAN:
        return run.mean(run.deployed, run.voting) or 0.0
    return run.final(run.deployed).get(VALIDATION, 0.0)


def _state(run: RunResult) -> str:
    """Say how far an unfinished run is, and why it failed."""
    file = run.path / "failure.json"
    reason = read_json(file).get("error", "") if run.status == "failed" and file.exists() else ""
    return f"{run.status}, epoch {_epoch(run)}. {reason}"


def _repeat(run: RunResult) -> str | None:
    if run.stored is None or not (file := run.stored / "config.toml").exists():
        return None
    return command("train", "--config", file, "--out", "NEW")


def _epoch(run: RunResult) -> int:
    return max((record["epoch"] for record in run.evaluations), default=0)


def _times(run: RunResult) -> Table:
    rows = []
    for phase, name in (("pretrain", "pre-training"), ("train", "training")):
        epochs = sum(epoch["phase"] == phase for epoch in run.epochs)
        if epochs:
            seconds = run.phase_seconds(phase)
            rows.append([name, f"{epochs}", f"{seconds:.0f}", f"{seconds / epochs:.2f}"])
    return Table(["phase", "epochs", "seconds", "seconds per epoch"], rows)


def _analyses(run: RunResult) -> list[dict[str, str]]:
    """Embed the figures that `peerdg analyze` left in the run folder."""
    files = [run.path / "analysis" / f"{name}.png" for name in _ANALYSES]
    return [
        {"name": file.stem, "uri": data_uri(file.read_bytes(), "png")}
        for file in files
        if file.is_file()
    ]


def _without_unset(tables: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_unset(value) if isinstance(value, Mapping) else value
        for key, value in tables.items()
        if value is not None
    }
