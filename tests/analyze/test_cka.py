import pytest
import torch
from torch import Tensor, nn

from peerdg.analyze.cka import activations, centered_gram, cka
from peerdg.errors import ConfigError, DataError, PeerdgWarning
from peerdg.models.backbones import build_classifier
from peerdg.models.classifier import Classifier
from tests.conftest import tiny_classifier


def direct(x: Tensor, y: Tensor) -> float:
    """The sums over three and four images that define the unbiased estimate, term by term."""

    def hsic(k: Tensor, m: Tensor) -> Tensor:
        n = len(k)
        k, m = k - k.diag().diag(), m - m.diag().diag()
        ones = torch.ones(n, dtype=k.dtype)
        first = torch.trace(k @ m) + (ones @ k @ ones) * (ones @ m @ ones) / ((n - 1) * (n - 2))
        return (first - 2 / (n - 2) * (ones @ k @ m @ ones)) / (n * (n - 3))

    k, m = (each.double() @ each.double().T for each in (x, y))
    return float(hsic(k, m) / (hsic(k, k) * hsic(m, m)).sqrt())


def estimate(x: Tensor, y: Tensor, *, unbiased: bool = True) -> float:
    k, m = (centered_gram(each.clone(), unbiased) for each in (x, y))
    return float((k * m).sum() / ((k * k).sum() * (m * m).sum()).sqrt())


def digits(seed: int) -> Classifier:
    torch.manual_seed(seed)
    return build_classifier("digits-cnn-half", classes=10)


def images(n: int, side: int = 32) -> Tensor:
    return torch.randint(0, 256, (n, 3, side, side), dtype=torch.uint8)


def features() -> tuple[Tensor, Tensor]:
    x = torch.randn(40, 6) + 3
    return x, torch.tanh(x @ torch.randn(6, 9)) + 0.3 * torch.randn(40, 9)


def test_the_unbiased_estimate_equals_its_definition():
    x, y = features()
    assert estimate(x, y) == pytest.approx(direct(x, y), abs=1e-5)


def test_the_biased_estimate_equals_the_feature_form():
    x, y = features()
    a, b = (each - each.mean(0) for each in (x, y))
    form = (b.T @ a).norm() ** 2 / ((a.T @ a).norm() * (b.T @ b).norm())
    assert estimate(x, y, unbiased=False) == pytest.approx(float(form), abs=1e-5)


def test_is_unchanged_by_rotation_scale_and_shift_but_not_by_a_linear_map():
    x, y = features()
    rotation = torch.linalg.qr(torch.randn(6, 6)).Q
    assert estimate(7 * x @ rotation + 2, y) == pytest.approx(estimate(x, y), abs=1e-5)
    stretched = x * torch.tensor([1, 1, 1, 1, 1, 20.0])
    assert abs(estimate(stretched, y) - estimate(x, y)) > 0.05


def test_independent_features_are_near_zero_only_without_bias():
    x, y = torch.randn(100, 100), torch.randn(100, 100)
    assert abs(estimate(x, y)) < 0.05
    assert estimate(x, y, unbiased=False) > 0.3


def test_each_entry_of_the_matrix_is_the_estimate_for_its_two_layers():
    a, b, x = digits(0), digits(1), images(12)
    result = cka(a, b, x)
    assert result.layers == ("conv1", "pool1", "conv2", "pool2", "fc1", "fc2", "logits")
    of_a, of_b = activations(a, x), activations(b, x)
    for row, first in enumerate(of_a.values()):
        for column, second in enumerate(of_b.values()):
            expected = direct(first, second)
            assert float(result.matrix[row, column]) == pytest.approx(expected, abs=1e-5)


def test_a_network_is_equal_to_itself_and_swapping_transposes():
    a, b, x = digits(0), digits(1), images(12)
    assert torch.allclose(cka(a, a, x).matrix.diagonal(), torch.ones(7, dtype=torch.float64))
    assert torch.allclose(cka(a, b, x).matrix, cka(b, a, x).matrix.T)
    assert set(cka(a, a, x).diagonal) == set(cka(a, a, x).layers)


def test_batches_average_hsic_before_dividing():
    a, b, x = digits(0), digits(1), images(16)
    total = torch.zeros(3, dtype=torch.float64)
    for batch in x.split(8):
        k, m = (centered_gram(activations(each, batch)["fc1"]) for each in (a, b))
        total += torch.stack([(k * m).sum(), (k * k).sum(), (m * m).sum()])
    expected = float(total[0] / (total[1] * total[2]).sqrt())
    assert cka(a, b, x, batch_size=8).diagonal["fc1"] == pytest.approx(expected, abs=1e-6)


def test_small_batches_agree_with_one_large_batch_on_average():
    a, b, x = tiny_classifier(seed=0), tiny_classifier(seed=1), images(1200, 12)
    small, large = (cka(a, b, x, batch_size=size).diagonal for size in (60, None))
    assert small == pytest.approx(large, abs=0.03)
    biased = cka(a, b, x, batch_size=None, unbiased=False).diagonal
    assert biased["logits"] == pytest.approx(large["logits"], abs=0.01)  # few units, many images


def test_layers_of_the_digits_network_are_before_and_after_pooling():
    model, x = digits(0), images(5)
    outputs = activations(model, x)
    with torch.no_grad():
        conv1 = model.encoder.conv1(model.prepare(x))
        pool1 = torch.relu(torch.max_pool2d(conv1, 2))
        assert torch.allclose(outputs["conv1"], conv1.movedim(1, -1).flatten(1), atol=1e-5)
        assert torch.allclose(outputs["pool1"], pool1.movedim(1, -1).flatten(1), atol=1e-5)
        assert torch.allclose(outputs["logits"], model.eval()(x), atol=1e-5)
    assert outputs["fc1"].min() < 0  # before its ReLU


class InPlace(nn.Module):
    """A network whose ReLU overwrites the output of the layer before, and calls a layer twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.relu = nn.ReLU(inplace=True)
        self.last = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.last(self.relu(self.conv(x)).mean((2, 3))))


def test_an_in_place_relu_does_not_overwrite_the_layer_before():
    model = Classifier(InPlace(), nn.Linear(4, 3), classes=3)
    assert activations(model, images(6, 12), ["conv"])["conv"].min() < 0
    assert list(activations(model, images(6, 12))) == ["conv", "features", "logits"]


def test_a_module_that_is_called_twice_is_refused():
    model = Classifier(InPlace(), nn.Linear(4, 3), classes=3)
    with pytest.raises(ConfigError, match="relu"):
        cka(model, model, images(6, 12), layers=["relu"])


def test_other_networks_have_their_stages_features_and_logits():
    model = build_classifier("resnet18", classes=3)
    outputs = activations(model, images(2, 64))
    assert list(outputs) == [
        "relu", "layer1", "layer2", "layer3", "layer4", "features", "logits",
    ]  # fmt: skip
    large = activations(model, images(1, 128))
    assert "relu, 8 x 8" in large and large["relu, 8 x 8"].shape == (1, 64 * 8 * 8)


def test_training_mode_and_hooks_are_restored_and_dropout_is_off():
    model = tiny_classifier(dropout=0.5).train()
    assert cka(model, model, images(8, 12)).diagonal["features"] == pytest.approx(1)
    assert model.training and model.encoder.drop.training
    assert not any(part._forward_hooks for part in model.modules())


def test_constant_features_are_set_to_zero_with_a_warning():
    model, other = tiny_classifier(seed=0), tiny_classifier(seed=1)
    nn.init.zeros_(model.encoder.fc.weight)
    nn.init.constant_(model.encoder.fc.bias, 0.7)
    with pytest.warns(PeerdgWarning, match="features.*constant"):
        result = cka(model, other, images(8, 12))
    assert result.matrix.isfinite().all()
    first, *others = result.diagonal.values()
    assert others == [0, 0] and first != 0


@pytest.mark.parametrize("unbiased", [True, False])
def test_rounding_of_the_mean_does_not_count_as_a_feature(unbiased: bool):
    for n in range(5, 30):
        assert not centered_gram(torch.full((n, 3), 0.1), unbiased).any()


def test_too_few_images_and_other_networks_are_refused():
    model = tiny_classifier()
    with pytest.raises(DataError, match="at least 4"):
        cka(model, model, images(3, 12))
    with pytest.raises(ConfigError, match="different classes"):
        cka(model, tiny_classifier(classes=2), images(8, 12))
    with pytest.raises(ConfigError, match=r"different layers: 'encoder\.norm"):
        cka(model, tiny_classifier(batch_norm=True), images(8, 12))


def test_a_last_batch_that_is_too_small_is_left_out():
    model = tiny_classifier()
    assert cka(model, model, images(18, 12), batch_size=8).images == 16
