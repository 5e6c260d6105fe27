"""Domain generators against plain torch layers, and a short training."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from peerdg.models import generators
from peerdg.models.generators import (
    AffineGenerator,
    DomainGenerator,
    ImageGenerator,
    InverseGenerator,
    draw_noise,
)

KINDS = {
    "image": ImageGenerator,
    "affine": AffineGenerator,
    "translation": lambda: AffineGenerator("translation"),
}
kinds = pytest.mark.parametrize("kind", KINDS)


def make(kind: str) -> DomainGenerator:
    torch.manual_seed(0)
    generator = KINDS[kind]()
    if isinstance(generator, AffineGenerator):  # as after some training
        nn.init.normal_(generator.map.weight, std=0.1)
    return generator


def images(n: int = 6, side: int = 12) -> Tensor:
    return torch.rand(n, 3, side, side, generator=torch.Generator().manual_seed(1))


def convolve(x: Tensor, layer: nn.Conv2d) -> Tensor:
    """A convolution of one image written out as patches times weights."""
    patches = F.unfold(x[None], 3, padding=1)[0]  # (channels * 9, pixels)
    output = layer.weight.flatten(1) @ patches + layer.bias[:, None]
    return output.view(-1, *x.shape[1:])


def plain(generator: ImageGenerator, x: Tensor, noise: Tensor) -> Tensor:
    """One image through the layers that the paper's code lists."""
    first, second = generator.encode[0], generator.encode[2]
    third, fourth = generator.decode[0], generator.decode[2]
    assert [layer.out_channels for layer in (first, second, third, fourth)] == [16, 32, 64, 3]
    h = convolve(convolve(x, first).clamp(min=0), second).clamp(min=0)
    style = generator.norm.style.weight @ noise + generator.norm.style.bias
    gamma, beta = style[:32], style[32:]
    for channel in range(32):
        values = h[channel]
        normal = (values - values.mean()) / (values.var(unbiased=False) + 1e-5).sqrt()
        h[channel] = (1 + gamma[channel]) * normal + beta[channel]
    h = convolve(h, third).clamp(min=0)
    return 1 / (1 + torch.exp(-convolve(h, fourth)))


def test_the_image_generator_has_the_layers_of_the_paper():
    generator, x = make("image"), images(3)
    noise = draw_noise(x, torch.Generator().manual_seed(2))
    with torch.no_grad():
        expected = torch.stack([plain(generator, *pair) for pair in zip(x, noise, strict=True)])
        torch.testing.assert_close(generator(x, noise), expected, rtol=1e-4, atol=1e-5)


def test_the_inverse_has_the_same_convolutions_and_takes_no_noise():
    inverse, generator = InverseGenerator(), ImageGenerator()
    shapes = [p.shape for n, p in generator.named_parameters() if not n.startswith("norm.")]
    assert [p.shape for p in inverse.parameters()] == shapes
    x = images(2)
    with torch.no_grad():
        h = convolve(x[0], inverse[0][0]).clamp(min=0)
        h = convolve(h, inverse[0][2]).clamp(min=0)
        h = torch.sigmoid(convolve(convolve(h, inverse[1][0]).clamp(min=0), inverse[1][2]))
        torch.testing.assert_close(inverse(x)[0], h, rtol=1e-4, atol=1e-5)


@kinds
def test_each_image_depends_on_its_own_noise_only(kind: str):
    generator, x = make(kind), images(1).expand(4, -1, -1, -1)
    noise = draw_noise(x, torch.Generator().manual_seed(3))
    with torch.no_grad():
        made = generator(x, noise)
        assert all(not torch.allclose(made[0], other) for other in made[1:])
        alone = generator(x[2:3], noise[2:3])
    torch.testing.assert_close(made[2:3], alone, rtol=1e-4, atol=1e-5)


@kinds
def test_a_mix_runs_from_the_generated_image_to_the_original(kind: str):
    generator, x = make(kind), images(3)
    with torch.no_grad():
        code = generator.code(x, draw_noise(x))
        ends = [generator.mixed(x, code, torch.full((3,), share)) for share in (0.0, 1.0)]
    torch.testing.assert_close(ends[0], generator.render(x, code))
    torch.testing.assert_close(ends[1], x, rtol=1e-4, atol=1e-5)


def test_a_mix_of_images_is_a_mix_of_pixels_with_a_share_for_each_image():
    generator, x, share = make("image"), images(3), torch.tensor([0.2, 0.5, 0.9])
    with torch.no_grad():
        code = generator.code(x, draw_noise(x))
    for i, r in enumerate(share):
        expected = r * x[i] + (1 - r) * code[i]
        torch.testing.assert_close(generator.mixed(x, code, share)[i], expected)


def test_a_mix_of_maps_is_a_map():
    """Half of a shift is half the shift, not two images at once."""
    generator, x = AffineGenerator(), images(1, 16)
    shift = torch.tensor([[[1.0, 0, 2 * 4 / 16], [0, 1.0, 0]]])  # by 4 of 16 pixels
    half = generator.mixed(x, shift, torch.tensor([0.5]))
    torch.testing.assert_close(half[..., :-2], x[..., 2:], rtol=1e-4, atol=1e-5)
    assert half[..., -2:].abs().max() < 1e-5  # black from outside


@pytest.mark.parametrize("moves", ["affine", "translation"])
def test_an_affine_generator_starts_with_the_identity(moves: str):
    generator, x = AffineGenerator(moves), images(3)
    torch.testing.assert_close(generator.generate(x), x, rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        generator.map.bias += torch.arange(6) / 10
    code = generator.code(x, draw_noise(x))
    linear = torch.eye(2) if moves == "translation" else torch.tensor([[1, 0.1], [0.3, 1.4]])
    torch.testing.assert_close(code[0, :, :2], linear)
    torch.testing.assert_close(code[0, :, 2], torch.tensor([0.2, 0.5]))


def test_large_images_in_parts_have_the_same_values_and_gradients(monkeypatch):
    """Also where autocast computes in bfloat16, and with parts of unequal length."""
    monkeypatch.setattr(generators, "images_per_pass", lambda side: 2)
    x = images(5, 12)
    noise, results = draw_noise(x, torch.Generator().manual_seed(5)), []
    for small in (64, 8):
        monkeypatch.setattr(generators, "SMALL", small)
        torch.manual_seed(0)
        generator, inverse = ImageGenerator(4), InverseGenerator(4)
        calls: list[int] = []
        generator.encode.register_forward_pre_hook(
            lambda _, inputs, calls=calls: calls.append(len(inputs[0]))
        )
        parameters = [*generator.parameters(), *inverse.parameters()]
        for bf16 in (False, True):
            with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                made = inverse(generator(x, noise))
            loss = (made.float() - x).square().mean()
            results.append((made.detach(), *torch.autograd.grad(loss, parameters)))
        # Each part is computed again for its gradient, the last one first.
        assert calls == ([5, 5] if small == 64 else [2, 2, 1, 1, 2, 2] * 2)
    for whole, parts in zip(results[:2], results[2:], strict=True):
        for a, b in zip(whole, parts, strict=True):
            torch.testing.assert_close(a, b, rtol=2e-2 if a.dtype == torch.bfloat16 else 1e-3,
                                       atol=1e-3)  # fmt: skip
