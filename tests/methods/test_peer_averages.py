"""Recipes that replace PEER's mean of snapshots by another average."""

import pytest
import torch

from peerdg.losses.barlow_twins import barlow_twins
from peerdg.run.config import resolve
from peerdg.run.prepare import build_method
from peerdg.train.source import Source
from tests.conftest import tiny_classifier, tiny_domain

SOURCE = Source(tiny_domain(n=32))


def make(recipe: str, **options):
    own = {"k": 2, "head_dim": 4, "head_hidden": 6, "scale": "sum", "w": 0.7, "lam": 0.01}
    train = {"batch_size": 8, "epochs": 6}
    config = resolve({"method": recipe, "peer": own, "train": train, **options})
    assert config.name == recipe
    with torch.random.fork_rng():
        torch.manual_seed(5)
        return build_method(config, tiny_classifier(), SOURCE)


def weights(model) -> torch.Tensor:
    return torch.cat([p.detach().double().flatten() for p in model.parameters()])


def trajectory(peer, epochs: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return weights of proxy and task model after each step."""
    optimizer = torch.optim.SGD([p for p in peer.parameters() if p.requires_grad], lr=0.1)
    proxies, tasks = [], []
    for epoch in range(epochs):
        peer.train()
        peer.start_epoch(epoch)
        for step, rows in enumerate(torch.arange(32).split(8)):
            optimizer.zero_grad()
            batch = SOURCE.batch(rows, seed=1, key=("train", epoch, step))
            peer.loss(batch)["loss"].backward()
            optimizer.step()
            peer.update_averages()
            proxies.append(weights(peer.proxy))
            tasks.append(weights(peer.task))
        peer.end_epoch(epoch)
    return proxies, tasks


def test_with_ema_the_task_model_is_the_moving_average_of_the_proxy():
    peer = make("peer-ema", average={"decay": 0.6})
    expected = weights(peer.proxy)
    for step, (proxy, task) in enumerate(zip(*trajectory(peer, 3), strict=True)):
        decay = min(0.6, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * proxy
        torch.testing.assert_close(task, expected, rtol=0, atol=1e-6)


def test_with_sma_the_task_model_is_the_mean_over_steps_from_the_start_step_on():
    peer = make("peer-sma", average={"t0": 3})
    proxies, tasks = trajectory(peer, 3)
    for step, task in enumerate(tasks, 1):
        expected = proxies[step - 1] if step <= 3 else torch.stack(proxies[2:step]).mean(0)
        torch.testing.assert_close(task, expected, rtol=0, atol=1e-6)


def test_without_averaging_the_task_model_is_the_latest_snapshot():
    peer = make("peer-no-average")
    start = weights(peer.proxy)
    proxies, tasks = trajectory(peer, 6)
    steps = 4  # per epoch, with a snapshot after every second epoch
    for step, task in enumerate(tasks):
        period = step // (2 * steps)
        assert torch.equal(task, proxies[period * 2 * steps - 1] if period else start)
    assert torch.equal(weights(peer.task), proxies[-1])


@pytest.mark.parametrize("recipe", ["peer-ema", "peer-sma", "peer-no-average"])
def test_each_regularizes_by_its_own_task_model(recipe: str):
    peer = make(recipe)
    trajectory(peer, 3)
    peer.start_epoch(3)
    batch = SOURCE.batch(torch.arange(8), seed=1, key=("train", 3, 0))
    x_bar = peer.augment(batch.images, batch.generator())
    peer.eval()  # keeps the running statistics of R
    expected = barlow_twins(
        peer.projection(peer.task.features(batch.images)),
        peer.projection(peer.proxy.features(x_bar)),
        lam=0.01,
    )
    terms = peer.loss(batch)
    torch.testing.assert_close(terms["regularizer"], expected.detach())
    total = terms["ce_clean"] + terms["ce_augmented"] + 0.7 * expected
    torch.testing.assert_close(terms["loss"], total)
    assert (peer.deployed_name, peer.networks["task"]) == ("task", peer.task)
