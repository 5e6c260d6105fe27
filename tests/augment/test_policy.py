from collections import Counter

import pytest
import torch

from peerdg.augment.policy import PRESETS, Policy
from peerdg.augment.randaugment import RandAugment
from peerdg.errors import ConfigError


def batch():
    return torch.randint(
        0, 256, (16, 3, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )


def test_a_draw_depends_on_seed_and_round_only():
    forward, backward = Policy(seed=3), Policy(seed=3)
    drawn = [forward.redraw(round) for round in range(20)]
    assert [backward.redraw(round) for round in reversed(range(20))] == drawn[::-1]
    assert [Policy(seed=4).redraw(round) for round in range(20)] != drawn


@pytest.mark.parametrize("name", PRESETS)
def test_every_value_of_the_ranges_is_drawn_and_no_other(name):
    policy = Policy.named(name)
    drawn = [policy.redraw(round) for round in range(600)]
    for key, (low, high) in zip(("num_ops", "magnitude"), PRESETS[name], strict=True):
        counts = Counter(values[key] for values in drawn)
        assert set(counts) == set(range(low, high + 1))


def test_the_ranges_are_those_of_the_documentation():
    assert PRESETS == {
        "default": ((1, 4), (1, 20)),
        "mild": ((1, 2), (1, 10)),
        "wide": ((1, 6), (1, 30)),
        "fixed": ((2, 2), (9, 9)),
    }
    unnamed, default = Policy(seed=4), Policy.named("default", seed=4)
    assert [unnamed.redraw(r) for r in range(30)] == [default.redraw(r) for r in range(30)]


def test_applies_the_randaugment_that_it_drew():
    policy = Policy(seed=5, operations="sdg")
    drawn = policy.redraw(7)
    expected = RandAugment(**drawn, operations="sdg")(batch(), torch.Generator().manual_seed(1))
    assert torch.equal(policy(batch(), torch.Generator().manual_seed(1)), expected)


def test_the_fixed_policy_never_changes_and_takes_its_values_as_arguments():
    assert {tuple(Policy.named("fixed").redraw(r).values()) for r in range(9)} == {(2, 9)}
    policy = Policy.named("fixed", num_ops=3, magnitude=4, seed=8)
    assert policy.redraw(1) == {"num_ops": 3, "magnitude": 4}


def test_an_unknown_name_is_refused_with_a_suggestion():
    with pytest.raises(ConfigError, match="Did you mean 'mild'"):
        Policy.named("mldi")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_ops": (4, 1)}, "4 to 1"),
        ({"num_ops": (-1, 1)}, "num_ops .* -1"),
        ({"magnitude": (1, 31)}, "magnitude .* 31"),
        ({"operations": "torchvison"}, "Did you mean 'torchvision'"),
    ],
)
def test_refuses_ranges_that_would_fail_later(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Policy(**arguments)
