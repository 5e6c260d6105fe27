"""Gradient norms of PEER's terms at the encoder: measuring them, and balancing by them."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import nn

import peerdg
from peerdg.errors import ConfigError
from peerdg.losses.barlow_twins import barlow_twins
from peerdg.methods import alignment, clean
from peerdg.methods.alignment import gradient_norm, probe_batch
from peerdg.methods.base import Batch
from peerdg.methods.peer import PEER, Settings
from peerdg.run.folder import RunFolder
from tests.conftest import tiny_classifier, tiny_splits


def probe(count: int = 12) -> Batch:
    generator = torch.Generator().manual_seed(3)
    images = torch.randint(0, 256, (count, 3, 8, 8), generator=generator, dtype=torch.uint8)
    return Batch(images, torch.arange(count) % 2, seed=5)


def make(**options: Any) -> PEER:
    torch.manual_seed(0)
    settings = Settings(k=2, head_dim=4, head_hidden=6, **options)
    return PEER(tiny_classifier(), settings, probe=probe()).train()


def test_norms_are_those_of_a_linear_map_in_closed_form():
    encoder = nn.Linear(3, 2, bias=False)
    x = torch.tensor([[1.0, 2.0, 2.0]])
    # Each output depends on one row of the weights, whose gradient is x.
    terms = (encoder(x)[0, 0], 2 * encoder(x)[0, 1], encoder(x)[0].sum())
    norms = torch.stack([gradient_norm(term, encoder) for term in terms])
    torch.testing.assert_close(norms, torch.tensor([3.0, 6.0, 18**0.5]))


def test_a_term_without_a_path_to_the_encoder_has_norm_zero():
    other = nn.Parameter(torch.ones(()))
    assert float(gradient_norm(other * 2, nn.Linear(2, 2))) == 0.0


def test_scale_gradient_makes_the_regularizers_norm_w_times_that_of_cross_entropy():
    peer = make(scale="gradient", w=0.3)
    recorded = peer.start_epoch(0)["gradients"]
    assert recorded["regularizer"] == pytest.approx(0.3 * recorded["cross_entropy"], rel=1e-5)
    loss = peer.loss(probe())
    weighted = loss.total - loss.parts["ce_clean"] - loss.parts["ce_augmented"]
    pull = gradient_norm(weighted, peer.proxy.encoder)
    assert float(pull) == pytest.approx(recorded["regularizer"], rel=1e-3)


def test_scale_mean_divides_by_the_outputs_of_the_head_and_released_by_forty():
    scales = ("sum", "mean", "released")
    terms = {scale: make(scale=scale, w=2.0).loss(probe()) for scale in scales}
    extra = {
        scale: float((t["loss"] - t["ce_clean"] - t["ce_augmented"]).detach())
        for scale, t in terms.items()
    }
    assert extra["mean"] == pytest.approx(extra["sum"] / 4, rel=1e-4)
    assert extra["released"] == pytest.approx(extra["sum"] / 40, rel=1e-4)
    assert float(terms["mean"]["regularizer"]) == float(terms["sum"]["regularizer"])


def test_the_recorded_regularizer_is_barlow_twins_whatever_its_scale():
    peer = make(scale="gradient", w=0.3, head="none", augment=False)
    peer.start_epoch(0)
    batch = probe()
    h = peer.proxy.features(batch.images)
    expected = barlow_twins(peer.task.features(batch.images), h, lam=0.005)
    torch.testing.assert_close(peer.loss(batch)["regularizer"], expected.detach())
    ce = F.cross_entropy(peer.proxy(batch.images), batch.labels)
    torch.testing.assert_close(peer.loss(batch)["ce_clean"], ce.detach())


def test_measuring_changes_no_other_buffer_and_no_weight():
    torch.manual_seed(0)
    model = tiny_classifier(batch_norm=True)
    clean = probe().images
    peer = PEER(model, Settings(k=2, head_dim=4), probe=probe(), clean=clean).train()
    before = {name: value.clone() for name, value in peer.state_dict().items()}
    assert peer.start_epoch(0)["gradients"]
    changed = [n for n, value in peer.state_dict().items() if not torch.equal(value, before[n])]
    assert sorted(changed) == ["scale.epoch", "scale.norms"]


def test_it_is_measured_once_at_the_start_of_each_period():
    peer = make()
    first = peer.start_epoch(0)
    assert "gradients" not in peer.start_epoch(1)
    with torch.no_grad():
        for parameter in peer.proxy.parameters():
            parameter.mul_(1.5)
    assert peer.start_epoch(0) == first  # a run resumed within the epoch calls it again
    assert peer.start_epoch(2)["gradients"] != first["gradients"]


def run(out: Path, **peer: Any) -> dict[str, torch.Tensor]:
    options = {"pretrain": {"epochs": 1, "batch_size": 8}, "evaluate_every": 1}
    peerdg.fit(
        tiny_splits(), method="peer", out=out, progress=False, model=tiny_classifier(dropout=0.3),
        train={"epochs": 2, "batch_size": 8, "lr": 0.01}, peer={"k": 1, "head_dim": 4, **peer},
        **options,
    )  # fmt: skip
    return load_file(next((out / "model").glob("*.safetensors")))


def test_a_run_trains_the_same_whether_it_measures_or_not(tmp_path: Path):
    measured = run(tmp_path / "a", gradient_images=64, scale="sum")
    not_measured = run(tmp_path / "b", scale="sum")
    assert all(torch.equal(measured[name], not_measured[name]) for name in measured)
    epochs = [r for r in RunFolder(tmp_path / "a").metrics.read() if r["kind"] == "epoch"]
    gradients = [record["gradients"] for record in epochs if record["phase"] == "train"]
    assert len(gradients) == 2 and all(each["cross_entropy"] > 0 for each in gradients)


def test_a_frozen_encoder_is_not_balanced():
    peer = make(scale="gradient", w=0.3)
    peer.proxy.encoder.requires_grad_(False)
    recorded = peer.start_epoch(0)["gradients"]
    assert recorded == {"cross_entropy": 0.0, "regularizer": 0.0}
    assert torch.isfinite(peer.loss(probe()).total)


def test_measuring_draws_the_same_numbers_and_leaves_those_of_training():
    """The probe has no seed, so its views come from torch's global generator."""
    unseeded = Batch(probe().images, probe().labels)
    settings = Settings(k=2, head_dim=4, head_hidden=6, scale="gradient")
    norms = []
    for seed in (1, 2):
        torch.manual_seed(0)
        peer = PEER(tiny_classifier(dropout=0.3), settings, probe=unseeded).train()
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        norms.append(peer.start_epoch(0)["gradients"])
        assert torch.equal(torch.get_rng_state(), before)
    assert norms[0] == norms[1]


def test_a_run_measures_on_as_many_images_as_a_batch_has(monkeypatch, tmp_path):
    """Barlow Twins depends on the size of the batch. Chunks of clean images may be smaller."""
    monkeypatch.setattr(clean, "images_per_pass", lambda side: 4)
    seen = []

    def watched(*given: Any) -> Batch:
        seen.append(probe_batch(*given))
        return seen[-1]

    monkeypatch.setattr(alignment, "probe_batch", watched)
    run(tmp_path / "run", scale="gradient")
    (batch,) = seen
    domain = tiny_splits().train
    assert len(batch.images) == 8
    rows = [int((domain.images == image).flatten(1).all(1).nonzero()[0]) for image in batch.images]
    assert len(set(rows)) == 8
    assert torch.equal(batch.labels, domain.labels[rows])


def test_scale_gradient_needs_a_batch():
    with pytest.raises(ConfigError, match="fixed batch") as caught:
        PEER(tiny_classifier(), Settings(scale="gradient"))
    assert "probe=Batch" in (caught.value.hint or "")
