"""L2D's style module against plain torch layers."""

import pytest
import torch
from torch import Tensor, nn

from peerdg.models.generators import StyleComplement

KERNELS = (3, 5)


def plain(module: StyleComplement, x: Tensor) -> Tensor:
    """The fixed branches, averaged, as modules of torch with the same weights."""
    color = nn.Conv2d(3, 3, 1)
    load(color, module, 0)
    branches = [torch.tanh(color(x))]
    for number, kernel in enumerate(KERNELS):
        there, back = nn.Conv2d(3, 3, kernel), nn.ConvTranspose2d(3, 3, kernel)
        load(there, module, 2 * number + 1)
        load(back, module, 2 * number + 2)
        h = nn.InstanceNorm2d(3)(there(x))
        branches.append(torch.tanh(back(h * module.scales[number] + module.shifts[number])))
    return torch.stack(branches).mean(0)


def load(layer: nn.Conv2d | nn.ConvTranspose2d, module: StyleComplement, number: int) -> None:
    weight = module.get_buffer(f"convolution{number}")
    layer.load_state_dict({"weight": weight, "bias": module.get_buffer(f"bias{number}")})


def test_the_styles_learn_from_plain_layers_without_dropout():
    torch.manual_seed(0)
    module, x = StyleComplement(12, kernels=KERNELS), torch.randn(4, 3, 12, 12)
    torch.testing.assert_close(module.styled(x), plain(module, x))
    assert torch.equal(module.styled(x), module.styled(x))  # noise of strength 0 at the start


@pytest.mark.parametrize("kernel", [1, 5])
def test_weights_and_biases_are_drawn_as_torch_draws_them(kernel: int):
    torch.manual_seed(0)
    module = StyleComplement(12, kernels=(kernel,))
    drawn = [StyleComplement(12, kernels=(kernel,)) for _ in range(300)]
    layer = nn.Conv2d(3, 3, kernel)
    bound = 1 / (3 * kernel**2) ** 0.5
    assert module.get_buffer("convolution1").shape == layer.weight.shape
    for name in ("convolution1", "bias1"):
        values = torch.cat([m.get_buffer(name).flatten() for m in drawn])
        assert values.abs().max() <= bound
        assert float(values.std()) == pytest.approx(bound / 3**0.5, rel=0.1)  # uniform
