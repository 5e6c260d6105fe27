"""Pictures of digits: printed ones in the street, printed ones on plain color, written on photos.

Everything is drawn at twice the final size and then reduced, as a camera would smooth it. In each
recipe the digit keeps a least distance in brightness or color from what is behind it, so that a
person can read all of them.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

DIGIT_SIDE = 32
_CANVAS = 2 * DIGIT_SIDE
_LUMINANCE = np.array([0.299, 0.587, 0.114])

Pixels = NDArray[np.uint8]
Values = NDArray[np.float64]


def street_digit(
    digit: int, rng: np.random.Generator, photos: list[Image.Image], fonts: list[Path]
) -> Pixels:
    """Draw a printed digit between its neighbours on a wall, out of focus, in uneven light."""
    patch = np.asarray(_patch(photos, rng, _CANVAS, (60, 180)), np.float64)
    mean = patch.mean(axis=(0, 1))
    texture = (patch - mean) * rng.uniform(0.3, 0.8)
    texture *= min(1.0, 20 / max((texture @ _LUMINANCE).std(), 1e-6))
    ink = _ink(mean, rng, least=55, most=125)
    ink = ink @ _LUMINANCE + rng.uniform(0.1, 0.8) * (ink - ink @ _LUMINANCE)  # weathered paint
    print_ = _Print(
        digit=digit,
        height=rng.uniform(36, 50),
        angle=rng.uniform(-9, 9),
        shift=(rng.uniform(-3, 3), rng.uniform(-3, 3)),
        neighbours=(_neighbour(rng, 0.75), _neighbour(rng, 0.75)),
        gap=rng.uniform(0, 5),
    )
    picture = _lay(mean + texture, ink, print_.mask(fonts[rng.integers(len(fonts))]))
    picture *= _light(rng, strength=0.15)
    return _photograph(picture, rng, blur=(0.8, 2.2), noise=(2, 6))


def synthetic_digit(digit: int, rng: np.random.Generator, fonts: list[Path]) -> Pixels:
    """Draw a printed digit of any size, color and tilt on a plain color, some with neighbours."""
    paper = rng.uniform(0, 255, 3)
    ink = _ink(paper, rng, least=70, most=230)
    height = rng.uniform(34, 56)
    room = (_CANVAS - height) / 2
    print_ = _Print(
        digit=digit,
        height=height,
        angle=rng.uniform(-18, 18),
        shift=(rng.uniform(-0.5, 0.5) * room, rng.uniform(-0.5, 0.5) * room),
        neighbours=(_neighbour(rng, 0.3), _neighbour(rng, 0.3)),
        gap=rng.uniform(1, 8),
    )
    plain = np.broadcast_to(paper, (_CANVAS, _CANVAS, 3))
    picture = _lay(plain, ink, print_.mask(fonts[rng.integers(len(fonts))]))
    return _photograph(picture, rng, blur=(0.0, 2.0), noise=(0, 4))


def digit_on_photo(digit: Pixels, rng: np.random.Generator, photos: list[Image.Image]) -> Pixels:
    """Take the absolute difference of a photo patch and a written digit, per channel.

    The recipe of MNIST-M: Ganin and Lempitsky, "Unsupervised Domain Adaptation by
    Backpropagation", ICML 2015, https://arxiv.org/abs/1409.7495. On a patch of middle grey or of
    strong texture the digit would vanish, so patches are drawn until it stands out.

    Args:
        digit: Grey image of the final size, white on black.
        rng: Draws the patch.
        photos: Where the patches come from.
    """
    stroke, ground = digit > 127, digit < 32
    while True:
        patch = np.asarray(_patch(photos, rng, DIGIT_SIDE, (32, 64)), np.int64)
        picture = np.abs(patch - digit[..., None].astype(np.int64)).astype(np.uint8)
        if _stands_out(picture[stroke], picture[ground]):
            return picture


def _stands_out(stroke: Pixels, ground: Pixels) -> bool:
    """Tell whether the mean colors are far apart and nearly every pixel is nearer to its own."""
    ends = stroke.mean(axis=0), ground.mean(axis=0)
    direction = ends[0] - ends[1]
    middle = (ends[0] + ends[1]) @ direction / 2
    wrong = max((stroke @ direction < middle).mean(), (ground @ direction > middle).mean())
    return bool(np.sqrt((direction**2).mean()) > 50 and wrong < 0.12)


@dataclass(frozen=True)
class _Print:
    """A printed digit on the canvas and what stands left and right of it."""

    digit: int
    height: float
    angle: float
    shift: tuple[float, float]
    neighbours: tuple[str, str]
    gap: float

    def mask(self, font_file: Path) -> Values:
        """Draw how much ink lies on each point of the canvas, 0..1."""
        text = str(self.digit)
        _, top, _, bottom = ImageFont.truetype(font_file, 100).getbbox(text)
        font = ImageFont.truetype(font_file, round(100 * self.height / (bottom - top)))
        left, top, right, bottom = font.getbbox(text, anchor="ls")
        x = _CANVAS / 2 - (left + right) / 2 + self.shift[0]
        y = _CANVAS / 2 - (top + bottom) / 2 + self.shift[1]
        before, after = self.neighbours
        canvas = Image.new("L", (_CANVAS, _CANVAS))
        draw = ImageDraw.Draw(canvas)
        draw.text((x, y), text, fill=255, font=font, anchor="ls")
        draw.text((x - self.gap, y), before, fill=255, font=font, anchor="rs")
        draw.text((x + font.getlength(text) + self.gap, y), after, 255, font, anchor="ls")
        canvas = canvas.rotate(self.angle, Image.Resampling.BICUBIC)
        return np.asarray(canvas, np.float64) / 255


def _neighbour(rng: np.random.Generator, chance: float) -> str:
    return str(rng.integers(10)) if rng.random() < chance else ""


def _patch(
    photos: list[Image.Image], rng: np.random.Generator, side: int, extent: tuple[int, int]
) -> Image.Image:
    """Cut a square of a random photo, `extent` of its pixels wide, scaled to `side`."""
    photo = photos[rng.integers(len(photos))]
    width = int(rng.integers(*extent))
    left = int(rng.integers(photo.width - width))
    top = int(rng.integers(photo.height - width))
    box = (left, top, left + width, top + width)
    return photo.resize((side, side), Image.Resampling.LANCZOS, box=box)


def _ink(paper: Values, rng: np.random.Generator, *, least: float, most: float) -> Values:
    """Draw a color whose brightness differs from that of `paper` by `least` to `most`."""
    while True:
        ink = rng.uniform(0, 255, 3)
        if least < abs(float((ink - paper) @ _LUMINANCE)) < most:
            return ink


def _lay(paper: Values, ink: Values, mask: Values) -> Values:
    return paper + mask[..., None] * (ink - paper)


def _light(rng: np.random.Generator, *, strength: float) -> Values:
    """Make brightness that grows along a random direction, 1 in the middle."""
    angle = rng.uniform(0, 2 * np.pi)
    y, x = np.mgrid[-1 : 1 : _CANVAS * 1j, -1 : 1 : _CANVAS * 1j]
    slope = np.asarray(np.cos(angle) * x + np.sin(angle) * y)
    return (1 + strength * rng.uniform() * slope)[..., None]


def _photograph(
    picture: Values,
    rng: np.random.Generator,
    *,
    blur: tuple[float, float],
    noise: tuple[float, float],
) -> Pixels:
    """Blur, reduce to the final size, add the sensor's noise."""
    image = Image.fromarray(_to_uint8(picture))
    image = image.filter(ImageFilter.GaussianBlur(rng.uniform(*blur)))
    small = np.asarray(image.resize((DIGIT_SIDE, DIGIT_SIDE), Image.Resampling.BOX), np.float64)
    return _to_uint8(small + rng.normal(0, rng.uniform(*noise), small.shape))


def _to_uint8(values: Values) -> Pixels:
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)
