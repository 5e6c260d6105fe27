import copy
import re
from pathlib import Path

import torch
from torch.optim.swa_utils import update_bn
from torch.utils.data import DataLoader, TensorDataset

from peerdg import PEER, PeerSettings
from tests.conftest import tiny_classifier, tiny_domain

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
OWN_LOOP = ROOT / "docs/own-loop.md"


def blocks(after: str, *, page: Path = README) -> str:
    text = page.read_text().partition(after)[2]
    return re.search(r"```python\n(.*?)```", text, re.DOTALL).group(1)


def test_the_readme_loop_trains_peer_and_is_under_15_lines():
    code = blocks("<!-- executed by tests/test_readme.py -->")
    loop = code[code.index("model =") :]
    assert len([line for line in loop.splitlines() if line.strip()]) < 15
    torch.manual_seed(0)
    images = torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8)
    labels = torch.arange(8)
    scope = {"epochs": 5, "loader": [(images, labels)]}
    exec(code, scope)
    peer, task = scope["peer"], scope["task"]
    assert peer.average.count == 1
    assert task is peer.task
    assert torch.equal(task.head.weight, peer.proxy.head.weight)  # the mean of one snapshot
    assert not torch.equal(task.head.weight, torch.zeros_like(task.head.weight))


def test_the_loop_with_an_own_network_recomputes_statistics_on_clean_images():
    code = blocks("<!-- executed by tests/test_readme.py: own network -->", page=OWN_LOOP)
    torch.manual_seed(0)
    images, labels = torch.rand(8, 3, 32, 32), torch.arange(8) % 3
    loader = DataLoader(TensorDataset(images, labels), batch_size=8, shuffle=True)
    scope = {"epochs": 2, "loader": loader}
    exec(code, scope)
    peer, task = scope["peer"], scope["task"]
    assert peer.average.count == 1
    assert torch.equal(task.head.weight, peer.proxy.head.weight)  # the mean of one snapshot
    reference = copy.deepcopy(task)
    update_bn([(images * 255).round().to(torch.uint8)], reference)
    for name, value in reference.named_buffers():
        torch.testing.assert_close(dict(task.named_buffers())[name], value, rtol=1e-3, atol=1e-3)
    normalized = (images - task.mean) / task.std
    torch.testing.assert_close(scope["network"].eval()(normalized), task(images))


def test_a_loop_saved_and_resumed_within_a_period_ends_bitwise_equal(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save, resume = (
        blocks(f"<!-- executed by tests/test_readme.py: {name} -->", page=OWN_LOOP)
        for name in ("save", "resume")
    )
    source = tiny_domain(n=32)
    loader = DataLoader(TensorDataset(source.images, source.labels), batch_size=8, shuffle=True)

    def build(seed):
        torch.manual_seed(seed)
        model = tiny_classifier(seed=seed, batch_norm=True, dropout=0.2)
        peer = PEER(model, PeerSettings(k=2, w=0.1), clean=loader)
        return {"torch": torch, "peer": peer, "optimizer": torch.optim.Adam(peer.parameters())}

    def train(scope, epochs):
        for scope["epoch"] in epochs:
            scope["peer"].start_epoch(scope["epoch"])
            for images, labels in loader:
                scope["optimizer"].zero_grad()
                scope["peer"](images, labels).total.backward()
                scope["optimizer"].step()
            scope["peer"].end_epoch(scope["epoch"])

    first = build(seed=0)
    train(first, range(3))  # a period and a half
    exec(save, first)
    train(first, range(3, 6))
    second = build(seed=1)
    exec(resume, second)
    train(second, range(second["state"]["epoch"], 6))
    assert second["peer"].average.count == 3
    expected = first["peer"].state_dict()
    for name, value in second["peer"].state_dict().items():
        assert torch.equal(value, expected[name]), name


def test_the_loop_of_the_averages_page_deploys_the_average():
    page = ROOT / "docs/methods/averages.md"
    code = blocks("<!-- executed by tests/test_readme.py: averages -->", page=page)
    torch.manual_seed(0)
    images = torch.randint(0, 256, (8, 3, 32, 32), dtype=torch.uint8)
    scope = {"epochs": 3, "loader": [(images, torch.arange(8))]}
    exec(code, scope)
    method, averaged = scope["method"], scope["averaged"]
    assert averaged is method.evaluated_networks["ema"]
    assert method.averages["ema"].count == 3
    assert not torch.equal(averaged.head.weight, method.trained.head.weight)
