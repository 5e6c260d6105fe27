"""Assemble the HTML pages: for runs, and for the evaluation of a model."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomli_w
import torch

from peerdg.augment.augment_options import make_augment
from peerdg.data import CRAFTED, VALIDATION
from peerdg.data.domain import Domain
from peerdg.errors import ConfigError, PeerdgError
from peerdg.evaluate.accuracy import DomainReport, evaluate_in_detail
from peerdg.models.classifier import Classifier
from peerdg.models.stored import load_stored, require_model
from peerdg.report.card import (
    LOOKED_AT,
    CardRow,
    DomainDetails,
    card_rows,
    domain_details,
)
from peerdg.report.compare import (
    Groups,
    answers_table,
    by_variant,
    require_comparable,
    variant_differences,
)
from peerdg.report.curves import curves, policies
from peerdg.report.evaluation import summary_table
from peerdg.report.html import data_uri, forest, picture, write_html
from peerdg.report.runs import RunResult
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
from peerdg.run.folder import read_run_config
from peerdg.run.prepare import evaluation_domains, load_splits
from peerdg.terminal import Table, command

HTML = "report.html"
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
    notes: Sequence[str] = field(default=())


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
    best = max(shown, key=lambda run: _source_score(run))
    closer = look_closer(best)
    single = shown[0] if len(shown) == 1 else None
    unfinished = [run for run in runs if run.status != "done"]
    several = len(groups) > 1
    return write_html(
        path,
        "runs.html.jinja",
        curves(labeled),
        title=title or (f"{best.method} on {best.data}" if single else f"{best.data}: runs"),
        happened=_happened(closer, table, single),
        advice=_advice(best, shown),
        closer=closer,
        single=single,
        table=table,
        rows=table.table() if several or len(shown) > 1 else None,
        forest=forest(table),
        notes=[*table.notes(), *table.cautions, *variant_differences(groups)],
        failures={
            **{str(run.path): f"{run.status}, epoch {_epoch(run)}" for run in unfinished},
            **(failures or {}),
        },
        answers={
            question: answers_table([a for a in table.answers if a.question == question])
            for question in dict.fromkeys(a.question for a in table.answers)
        },
        targets=targets_table(labeled) if shown[0].targets else None,
        crafted=crafted_table(labeled) if best.voting else None,
        fluctuation=fluctuation_table(labeled) if shown[0].targets else None,
        selection=selection_table(labeled) if shown[0].targets else None,
        analyses=_analyses(shown),
        times=_times(single) if single else table.further(),
        profile=profile_table(single) if single and single.profile else None,
        config=tomli_w.dumps(_without_unset(best.config)).splitlines(),
        repeat=command("train", "--config", best.model_folder / "config.toml", "--out", "NEW")
        if (best.model_folder / "config.toml").exists()
        else None,
        software="; ".join(sorted({name for run in shown for name in run.software})),
        looked_at=LOOKED_AT,
    )


def write_evaluation_page(
    details: Sequence[DomainReport], domains: Mapping[str, Domain], path: Path, *, title: str
) -> Path:
    """Write a page with a card, confusion matrices and mistakes, after `evaluate_in_detail`."""
    accuracy = {detail.domain: (detail.accuracy, detail.n) for detail in details}
    parts = [domain_details(detail, domains[detail.domain], detail.domain) for detail in details]
    return write_html(
        path,
        "evaluation.html.jinja",
        {},
        title=title,
        rows=card_rows(accuracy, domains, augmented=False),
        details=parts,
        summary=summary_table(details),
    )


def look_closer(run: RunResult) -> CloserLook:
    """Load the model and the images of a run, and look at calibration, mistakes and views."""
    accuracy = _accuracy(run)
    try:
        config = resolve(read_run_config(run.model_folder))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of unfinished and known images: the page says so
            model, description = load_stored(run.model_folder)
            splits = load_splits(config, model.classes)
            domains = evaluation_domains(config, splits)
            natural = {n: d for n, d in domains.items() if not n.startswith(CRAFTED)}
            details = _details(model, natural, size=description["image_size"])
    except PeerdgError as error:
        rows = card_rows(accuracy, {}, augmented=run.augments)
        missing = error.message
        if run.shared_with and run.stored is None:
            missing = "its run stores only the model of " + run.shared_with[0] + "."
        return CloserLook(run, rows, missing=missing)
    examples = dict(domains)
    if VALIDATION in domains:
        examples[VALIDATION] = domains[VALIDATION].sample(config.crafted_images or None)
    rows = card_rows(accuracy, examples, augmented=run.augments)
    return CloserLook(run, rows, "", details, _views(run, config, splits.train))


def _details(model: Classifier, domains: Mapping[str, Domain], *, size: int) -> list[DomainDetails]:
    few = {name: domain.sample(LOOKED_AT) for name, domain in domains.items()}
    return [
        domain_details(evaluate_in_detail(model, domain, size=size), domain, name)
        for name, domain in few.items()
    ]


def _accuracy(run: RunResult) -> dict[str, tuple[float, int]]:
    """Return accuracy and image count of the deployed model by domain."""
    records = [record for record in run.evaluations if record["model"] == run.deployed]
    epoch = records[-1]["epoch"]
    if run.config.get("select", "last") != "last":
        epoch = require_model(run.model_folder)["training"]["epoch"]
    return {r["domain"]: (r["accuracy"], r["n"]) for r in records if r["epoch"] == epoch}


def _views(run: RunResult, config: RunConfig, source: Domain) -> list[dict[str, Any]]:
    """Augment a few training images with each policy of the run."""
    drawn = policies(run)
    if not config.augments or not drawn:
        return []
    images = source.images[torch.linspace(0, len(source) - 1, _VIEWED).long()]
    augment = make_augment(config.augment, seed=config.main_seed, size=source.image_size[0])
    views = [{"text": "original images", "images": [picture(image) for image in images]}]
    step = -(-len(drawn) // _POLICIES)
    for policy in drawn[::step]:
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
        count = sum(len(row.seeds) for row in table.rows)
        text = f"{count} runs with {len(table.rows)} methods were trained on {source}. "
        ranked = [row for row in table.rows if row.score]
        first = max(ranked, key=lambda row: row.score.mean if row.score else 0)
        best = f"{first.score.mean:.1f}" if first.score else ""
        return text + f"The highest {table.score} is {best} %, by {first.label}."
    trained = f"{run.method} was trained on {source} for {_epoch(run)} epochs. "
    parts = [
        f"{row.accuracy:.1f} % on "
        + ("validation images" if row.kind == "source" else f"the unseen domain {row.name}")
        for row in closer.rows
        if row.kind in ("source", "target")
    ]
    crafted = run.mean(run.deployed, run.voting)
    if crafted is not None:
        parts.insert(1, f"{crafted:.1f} % on distorted copies of them")
    *most, last = parts
    return trained + f"It reaches {', '.join(most)}{' and ' if most else ''}{last}."


def _advice(best: RunResult, shown: Sequence[RunResult]) -> list[str]:
    """Say what to do next."""
    if best.status != "done":
        return [f"The run is not finished. Continue it with {command('resume', best.path)}."]
    sentences = []
    if not best.targets:
        sentences.append(
            "There were no unseen domains to test on. Distorted copies show what breaks the model, "
            "but real images decide: " + command("evaluate", best.model_folder, "FOLDER") + "."
        )
    crafted, clean = best.mean(best.deployed, best.voting), best.final(best.deployed)
    if crafted is not None and VALIDATION in clean:
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
    if (best.model_folder / "model").exists():
        sentences.append(f"Use the model with {command('predict', best.model_folder, 'IMAGE')}.")
    return sentences


def _source_score(run: RunResult) -> float:
    """Return a run's mean on distorted copies or, without them, on validation images."""
    crafted = run.mean(run.deployed, run.voting)
    return crafted if crafted is not None else run.final(run.deployed).get(VALIDATION, 0.0)


def _epoch(run: RunResult) -> int:
    return max((record["epoch"] for record in run.evaluations), default=0)


def _times(run: RunResult) -> Table:
    rows = []
    for phase, name in (("pretrain", "pre-training"), ("train", "training")):
        epochs = [epoch for epoch in run.epochs if epoch["phase"] == phase and "seconds" in epoch]
        if epochs:
            seconds = sum(epoch["seconds"] for epoch in epochs)
            rows.append([name, f"{len(epochs)}", f"{seconds:.0f}", f"{seconds / len(epochs):.2f}"])
    return Table(["phase", "epochs", "seconds", "seconds per epoch"], rows)


def _analyses(runs: Sequence[RunResult]) -> list[dict[str, str]]:
    """Embed the figures that `peerdg analyze` left in the run folders."""
    found = []
    for run in runs:
        for name in _ANALYSES:
            file = run.path / "analysis" / f"{name}.png"
            if file.is_file():
                uri = data_uri(file.read_bytes(), "png")
                found.append({"name": f"{name}, {run.path}", "uri": uri})
    return found


def _without_unset(tables: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_unset(value) if isinstance(value, Mapping) else value
        for key, value in tables.items()
        if value is not None
    }
