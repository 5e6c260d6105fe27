import pytest
import torch
import torch.nn.functional as F

from peerdg.models.generators import LatentCritic, WassersteinAutoEncoder


def widths(module: torch.nn.Module) -> list[tuple[int, int]]:
    layers = [m for m in module.modules() if isinstance(m, torch.nn.Linear)]
    return [(layer.in_features, layer.out_features) for layer in layers]


def test_its_sizes_are_those_of_the_released_code():
    model = WassersteinAutoEncoder(32)
    assert widths(model.encoder) == [(3072, 400), (400, 20)]
    assert widths(model.decoder) == [(20, 400), (400, 3072)]
    assert widths(LatentCritic()) == [(20, 128), (128, 1)]


@pytest.mark.parametrize(("kind", "side"), [("mlp", 12), ("mlp", 5), ("conv", 32), ("conv", 12)])
def test_an_image_goes_through_a_code_and_keeps_its_shape(kind, side):
    model = WassersteinAutoEncoder(side, kind)
    x = torch.rand(4, 3, side, side)
    logits, code = model(x)
    assert logits.shape == x.shape
    assert code.shape == (4, 20)
    assert LatentCritic()(code).shape == (4,)
    again = model.reconstruct(x)
    torch.testing.assert_close(again, torch.sigmoid(model.decoder(model.encoder(x))))
    # Each image by itself.
    torch.testing.assert_close(model.reconstruct(x[1:2]), again[1:2])


def test_larger_images_are_reduced_by_the_mean_of_blocks_and_gradients_pass():
    model = WassersteinAutoEncoder(4)
    images = torch.rand(2, 3, 12, 12, requires_grad=True)
    expected = images.detach().unfold(2, 3, 3).unfold(3, 3, 3).mean((4, 5))
    torch.testing.assert_close(model.thumbnails(images).detach(), expected)
    model.reconstruct(images).sum().backward()
    gradient = images.grad
    assert gradient.abs().sum() > 0
    # All pixels of a block have one gradient.
    torch.testing.assert_close(gradient, F.interpolate(gradient[..., ::3, ::3], scale_factor=3))


def test_uint8_and_float_images_give_the_same_thumbnails():
    model = WassersteinAutoEncoder(8)
    images = torch.randint(0, 256, (3, 3, 8, 8), dtype=torch.uint8)
    assert torch.equal(model.thumbnails(images), images.float() / 255)
    assert torch.equal(model.thumbnails(images / 255), images / 255)
