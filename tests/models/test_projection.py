import pytest
import torch
from torch import nn

from peerdg.models.projection import projection_head


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_has_as_many_linear_layers_as_asked_and_a_bare_last_one(layers):
    head = projection_head(1024, 128, layers=layers)
    linears = [m for m in head if isinstance(m, nn.Linear)]
    assert len(linears) == layers
    assert isinstance(head[-1], nn.Linear)
    assert head(torch.randn(4, 1024)).shape == (4, 128)


def test_hidden_width_is_at_least_512():
    assert projection_head(10, 128)[0].out_features == 512
    assert projection_head(10, 1024)[0].out_features == 1024
    assert projection_head(10, 128, hidden_dim=32)[0].out_features == 32


@pytest.mark.parametrize(("norm", "kind"), [("bn", nn.BatchNorm1d), ("ln", nn.LayerNorm)])
def test_norm_can_be_chosen(norm, kind):
    assert isinstance(projection_head(10, 4, norm=norm)[1], kind)


def test_norm_can_be_left_out():
    assert isinstance(projection_head(10, 4, norm="none")[1], nn.ReLU)
