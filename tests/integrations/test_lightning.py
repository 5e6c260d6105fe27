"""PEER in Lightning trains exactly as in a loop of one's own."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from peerdg import EMA, PEER, PeerSettings
from tests.conftest import tiny_classifier, tiny_domain

if find_spec("lightning") is None:
    pytest.skip("needs the extra lightning", allow_module_level=True)

from peerdg.integrations.lightning import PeerModule  # isort: skip
from lightning import Callback, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

pytestmark = [
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),  # lightning's own call
]
LR = 0.01


def loader(n: int = 24, *, seed: int = 0) -> DataLoader:
    """Batches in a fixed order, so that two loops see the same ones."""
    domain = tiny_domain(n=n, seed=seed)
    return DataLoader(TensorDataset(domain.images, domain.labels), batch_size=8)


def make_peer(average: Any = None, **settings: Any) -> PEER:
    torch.manual_seed(0)
    model = tiny_classifier(batch_norm=True, dropout=0.2)
    clean = tiny_domain(n=24).images
    if average is not None:
        average = average(model)
    settings = {"k": 2, "w": 0.1, "head_dim": 8} | settings
    return PEER(model, PeerSettings(**settings), clean=clean, average=average)


def own_loop(peer: PEER, epochs: int) -> list[dict[str, torch.Tensor]]:
    """The loop of docs/own-loop.md. Returns the gradients of each step."""
    optimizer = torch.optim.Adam(peer.parameters(), lr=LR)
    gradients = []
    for epoch in range(epochs):
        peer.train()
        peer.start_epoch(epoch)
        for step, (images, labels) in enumerate(loader()):
            torch.manual_seed(1000 * epoch + step)
            optimizer.zero_grad()
            peer.loss(images, labels).total.backward()
            gradients.append(gradients_of(peer))
            optimizer.step()
            peer.update_averages()
        if peer.end_epoch(epoch).reset_optimizers:
            optimizer.state.clear()
    return gradients


def gradients_of(peer: PEER) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in peer.named_parameters() if p.grad is not None}


class Recorder(Callback):
    """Seeds each step like `own_loop`, and records gradients and snapshots."""

    def __init__(self) -> None:
        self.gradients: list[dict[str, torch.Tensor]] = []
        self.counts: list[int] = []  # snapshots at each validation

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        torch.manual_seed(1000 * trainer.current_epoch + batch_idx)

    def on_after_backward(self, trainer, module):
        self.gradients.append(gradients_of(module.peer))

    def on_validation_start(self, trainer, module):
        if not trainer.sanity_checking:
            self.counts.append(module.peer.average.count)


def trainer(epochs: int, *callbacks: Callback, **options: Any) -> Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    options = {"enable_checkpointing": False, "accelerator": "cpu"} | quiet | options
    return Trainer(max_epochs=epochs, callbacks=list(callbacks), **options)


def assert_equal(first: PEER, second: PEER) -> None:
    expected = second.state_dict()
    for name, value in first.state_dict().items():
        assert torch.equal(value, expected[name]), name


@pytest.mark.parametrize(
    "settings",
    [{}, {"reset_proxy": True}, {"average": lambda model: EMA(model, decay=0.9)}],
    ids=["snapshots", "reset proxy", "ema"],
)
def test_gradients_and_weights_equal_those_of_our_loop_bit_for_bit(settings):
    ours, module = make_peer(**settings), PeerModule(make_peer(**settings), lr=LR)
    expected = own_loop(ours, epochs=4)
    recorder = Recorder()
    trainer(4, recorder).fit(module, loader())
    assert len(recorder.gradients) == len(expected) == 12
    for found, gradients in zip(recorder.gradients, expected, strict=True):
        assert found.keys() == gradients.keys()
        assert all(torch.equal(found[name], gradients[name]) for name in gradients)
    assert_equal(module.peer, ours)


def test_validation_sees_the_snapshot_of_its_epoch_and_the_task_model():
    module, recorder = PeerModule(make_peer(), lr=LR), Recorder()
    run = trainer(4, recorder)
    run.fit(module, loader(), loader(seed=1))
    assert recorder.counts == [0, 1, 1, 2]
    domain = tiny_domain()
    logits = module.eval()(domain.images)
    assert torch.equal(logits, module.peer.deployed(domain.images))
    assert not torch.equal(logits, module.peer.proxy.eval()(domain.images))
    (scores,) = run.test(module, loader(), verbose=False)
    right = logits.argmax(1) == domain.labels
    assert scores["accuracy"] == pytest.approx(float(right.float().mean()))


class Endless(IterableDataset):
    """A data set without a length."""

    def __iter__(self):
        return iter(loader())


@pytest.mark.parametrize(
    ("batches", "limit", "epochs", "snapshots"),
    [
        (loader(), {"limit_train_batches": 2}, 2, 1),
        (DataLoader(Endless(), batch_size=None), {}, 2, 1),
        (loader(), {"max_steps": 5}, 2, 0),  # stopped within the second epoch
        (loader(), {"accumulate_grad_batches": 2}, 2, 1),
    ],
    ids=["limited", "no length", "stopped early", "accumulated"],
)
def test_a_snapshot_is_taken_after_complete_epochs_only(batches, limit, epochs, snapshots):
    module = PeerModule(make_peer())
    trainer(epochs, **limit).fit(module, batches)
    assert module.peer.average.count == snapshots


@pytest.mark.filterwarnings("ignore:Checkpoint directory")
def test_a_training_continued_from_a_checkpoint_ends_bitwise_equal(tmp_path: Path):
    def train(checkpoint: Path | None) -> PEER:
        module = PeerModule(make_peer(), lr=LR)
        saving = ModelCheckpoint(tmp_path, "{epoch}", save_top_k=-1, enable_version_counter=False)
        run = trainer(6, Recorder(), saving, enable_checkpointing=True)
        run.fit(module, loader(), loader(seed=1), ckpt_path=checkpoint)
        assert module.peer.average.count == 3
        return module.peer

    whole = train(None)
    for epoch in (1, 2):  # after a snapshot, and within a period
        assert_equal(train(tmp_path / f"epoch={epoch}.ckpt"), whole)


@pytest.mark.filterwarnings("ignore:Checkpoint directory")
@pytest.mark.parametrize("step", [3, 6, 9])
def test_a_checkpoint_of_a_step_has_the_snapshot_of_its_epoch(tmp_path: Path, step: int):
    def train(checkpoint: Path | None) -> PEER:
        module = PeerModule(make_peer(), lr=LR)
        saving = ModelCheckpoint(tmp_path, "{step}", save_top_k=-1, every_n_train_steps=3,
                                 enable_version_counter=False)  # fmt: skip
        run = trainer(4, Recorder(), saving, enable_checkpointing=True)
        run.fit(module, loader(), ckpt_path=checkpoint)
        return module.peer

    whole = train(None)
    assert whole.average.count == 2
    assert_equal(train(tmp_path / f"step={step}.ckpt"), whole)


def test_a_stored_module_is_loaded_with_its_weights(tmp_path: Path):
    module = PeerModule(make_peer(), lr=LR)
    run = trainer(2)
    run.fit(module, loader())
    run.save_checkpoint(tmp_path / "last.ckpt")
    loaded = PeerModule.load_from_checkpoint(tmp_path / "last.ckpt", peer=make_peer())
    assert_equal(loaded.peer, module.peer)
