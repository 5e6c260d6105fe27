"""Every method, stopped somewhere in a short run and resumed, ends as if it never was."""

import random
from contextlib import nullcontext
from pathlib import Path

import pytest

import peerdg
from peerdg.api import Run
from peerdg.augment.augment_options import DEFAULTS
from peerdg.errors import PeerdgWarning
from peerdg.methods.registry import method_names
from tests.conftest import tiny_classifier, tiny_splits
from tests.methods.tiny import TINY
from tests.run.stops import stopped_at

EPOCHS, STEPS = 3, 3  # 24 images in batches of 8; one epoch of pre-training before
VARIANTS = [
    *((name, {}) for name in method_names()),
    ("peer", {"regularizer": "none"}),
    ("peer", {"regularizer": "info-nce", "average": False}),
    ("peer", {"include_init": True, "views": "both_same"}),
    ("peer", {"reset_proxy": True, "head": "none"}),
    ("peer", {"transform": {"size": 10, "crop": (0.5, 1.0), "flip": 0.5}}),
    *(("peer", {"G": {"kind": kind}}) for kind in DEFAULTS if kind != "l2d-generator"),
    ("peer", {"G": {"kind": "l2d-generator", "generator_kernels": [3, 5]}}),
    ("miro", {"G": {"kind": "randconv", "identity": 0.0}}),
]


def options(method: str, settings: dict) -> dict:
    own = TINY.get(method, {}) | {
        name: value for name, value in settings.items() if name not in ("transform", "G")
    }
    return {
        "method": method,
        "pretrain": {"epochs": 1, "batch_size": 8},
        "train": {"epochs": EPOCHS, "batch_size": 8, "lr": 0.01},
        "evaluate_every": 1,
        "checkpoint_minutes": 0.0,
        "transform": settings.get("transform", {}),
        "augment": settings.get("G", {}),
        **({method: own} if own else {}),
    }


def fit(out: Path, method: str, settings: dict, *, existing="refuse") -> Run:
    model = tiny_classifier(batch_norm=True, dropout=0.3)
    warned = pytest.warns(PeerdgWarning, match="not a multiple of k")
    with warned if has_tail(method, settings) else nullcontext():
        return peerdg.fit(
            tiny_splits(), out=out, model=model, existing=existing, **options(method, settings)
        )


def has_tail(method: str, settings: dict) -> bool:
    """Three epochs with k = 2: the last one is not averaged, and the run says so."""
    return method == "peer" and not settings.get("include_init")


LAST = (1 + EPOCHS) * STEPS  # the batches of both phases


variants = pytest.mark.parametrize(
    ("method", "settings"),
    VARIANTS,
    ids=lambda v: v if isinstance(v, str) else "-".join(map(str, (*v, *v.get("G", {}).values()))),
)


@variants
def test_a_resumed_run_ends_bitwise_equal(method, settings, tmp_path, request):
    batch = random.Random(request.node.name).randint(1, LAST)  # another one for each variant
    assert_resumes(method, settings, tmp_path, [batch])


@pytest.mark.slow
@variants
def test_stopped_at_any_batch_it_ends_bitwise_equal(method, settings, tmp_path):
    assert_resumes(method, settings, tmp_path, range(1, LAST + 1))


def assert_resumes(method, settings, tmp_path, batches) -> None:
    """Stop a run in each of the batches, resume it, and compare it with one that went through."""
    whole = fit(tmp_path / "whole", method, settings).path
    expected = (whole / "model/model.safetensors").read_bytes()
    metrics = (whole / "metrics.jsonl").read_bytes()
    for batch in batches:
        out = tmp_path / f"stopped-{batch}"
        with stopped_at(batch):
            fit(out, method, settings)
        resumed = fit(out, method, settings, existing="resume").path
        assert (resumed / "model/model.safetensors").read_bytes() == expected, (
            f"after batch {batch}"
        )
        assert (resumed / "metrics.jsonl").read_bytes() == metrics, f"after batch {batch}"
