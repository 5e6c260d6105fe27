import copy
import re
from pathlib import Path

import torch
from torch.optim.swa_utils import update_bn
from torch.utils.data import DataLoader, TensorDataset

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"


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


def test_the_readme_loop_with_an_own_network_ships_statistics_of_the_clean_images():
    code = blocks("<!-- executed by tests/test_readme.py: own network -->")
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
