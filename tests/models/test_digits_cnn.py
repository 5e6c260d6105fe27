import torch
import torch.nn.functional as F

from peerdg.models.backbones import DigitsCNN, build_classifier


def usual_order(net: DigitsCNN, x: torch.Tensor) -> torch.Tensor:
    """Convolution, ReLU, pooling: as the papers draw it."""
    x = F.max_pool2d(F.relu(net.conv1(x)), 2)
    x = F.max_pool2d(F.relu(net.conv2(x)), 2)
    return F.relu(net.fc2(F.relu(net.fc1(x.flatten(1)))))


def test_pooling_before_relu_is_the_same_function_and_gradient():
    torch.manual_seed(0)
    net = DigitsCNN()
    x = torch.randn(4, 3, 32, 32)
    ours, papers = net(x), usual_order(net, x)
    assert torch.equal(ours, papers)
    weights = list(net.parameters())
    ours = torch.autograd.grad(ours.square().sum(), weights)
    papers = torch.autograd.grad(usual_order(net, x).square().sum(), weights)
    for a, b in zip(ours, papers, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_has_the_layers_of_the_digits_papers():
    net = DigitsCNN()
    shapes = [tuple(p.shape) for p in net.parameters() if p.ndim > 1]
    assert shapes == [(64, 3, 5, 5), (128, 64, 5, 5), (1024, 3200), (1024, 1024)]


def test_features_are_1024_and_non_negative():
    model = build_classifier("digits-cnn", classes=tuple("0123456789"))
    images = torch.randint(0, 256, (5, 3, 32, 32), dtype=torch.uint8)
    features = model.features(images)
    assert features.shape == (5, 1024)
    assert model(images).shape == (5, 10)
    assert features.min() >= 0
