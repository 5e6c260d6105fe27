"""digits-mini: the Digits benchmark in small, from data inside installed packages.

| domain         | images | what                                                    | stands for |
|----------------|--------|---------------------------------------------------------|------------|
| mnist (source) | 5,000  | real MNIST digits, 4,000 to train on, 1,000 to validate | MNIST      |
| street         | 1,000  | printed digits and their neighbours over photo patches  | SVHN       |
| mnist-m        | 1,000  | real MNIST digits blended with photo patches            | MNIST-M    |
| syn            | 1,000  | printed digits on plain colors                          | SYN        |
| uci            | 1,000  | real digits of the UCI optical recognition set, 8 x 8   | USPS       |

`mnist-m` shows the 1,000 validation digits, because none of the digits trained on may appear in a
target. All classes have the same number of images in every part. The content depends on fixed
seeds and on the versions of the packages, which are part of the cache's key.

The packages' files are read by their path, without importing the packages: that is faster, and
scikit-image's own loader would try to download a photo that it does not find.
"""

from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from peerdg.data import digits_render as render
from peerdg.data.benchmarks import BENCHMARKS, DigitsMiniSettings, DomainReport, inspect
from peerdg.data.cache import cached_domain
from peerdg.data.decode import decode_image
from peerdg.data.digits_formats import Digits
from peerdg.data.domain import Domain
from peerdg.data.splits import Splits
from peerdg.errors import ConfigError
from peerdg.rng import seed_for

_RECIPE = 1  # count up when a change here or in render.py changes any image
_TRAIN, _VALIDATION, _TARGET = 4000, 1000, 1000
_INFO = BENCHMARKS["digits-mini"]

# All of them in the scikit-image and scikit-learn wheels; the licences allow changed copies.
_SKIMAGE_PHOTOS = (
    "astronaut.png brick.png chelsea.png coffee.png grass.png gravel.png hubble_deep_field.jpg "
    "ihc.png motorcycle_left.png retina.jpg rocket.jpg"
).split()
_SKLEARN_PHOTOS = ("china.jpg", "flower.jpg")

# matplotlib's text fonts. The others lack digits or draw symbols in their place.
_FONTS = (
    "DejaVuSans DejaVuSans-Bold DejaVuSans-BoldOblique DejaVuSans-Oblique DejaVuSansMono "
    "DejaVuSansMono-Bold DejaVuSansMono-BoldOblique DejaVuSansMono-Oblique DejaVuSerif "
    "DejaVuSerif-Bold DejaVuSerif-BoldItalic DejaVuSerif-Italic STIXGeneral STIXGeneralBol "
    "STIXGeneralBolIta STIXGeneralItalic cmb10 cmr10 cmss10 cmti10 cmtt10"
).split()

_HINT = "pip install 'peerdg[demo]'"


def load(
    settings: DigitsMiniSettings, *, root: Path | None = None, targets: Sequence[str] | None = None
) -> Splits:
    """Load source and targets, made on first use and cached.

    Args:
        settings: How many images to train on; a smaller set is a part of each larger one.
        root: Not used; the packages carry the data.
        targets: Target domains to load; all of them if None.
    """
    mnist = _domain("mnist")
    return Splits(
        train=mnist.subset(torch.arange(settings.train)),
        validation=mnist.subset(torch.arange(_TRAIN, _TRAIN + _VALIDATION)),
        targets={name: _domain(name) for name in (_INFO.targets if targets is None else targets)},
    )


def verify(root: Path | None = None) -> list[DomainReport]:
    """Report on each domain; make those that are not cached."""
    return [
        inspect(
            lambda name=name: _content(_domain(name)),  # type: ignore[misc]
            domain=name,
            split="all",
            expected=_TRAIN + _VALIDATION if name == _INFO.source else _TARGET,
            obtain=_INFO.obtain,
            licence=_INFO.licence,
        )
        for name in (_INFO.source, *_INFO.targets)
    ]


def _content(domain: Domain) -> Digits:
    return domain.images.numpy(), domain.labels.numpy()


def _domain(name: str) -> Domain:
    def make() -> Domain:
        images, labels = _RECIPES[name](_rng(name))  # (n, 32, 32, 3)
        return Domain(
            name=name,
            classes=_INFO.classes,
            images=torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(),
            labels=torch.from_numpy(labels),
        )

    key = {"name": f"digits-mini-{name}", "recipe": _RECIPE, "packages": _versions()}
    return cached_domain(key, make)


def _rng(name: str) -> np.random.Generator:
    return np.random.default_rng(seed_for(0, "digits-mini", name))


def _make_mnist(rng: np.random.Generator) -> Digits:
    digits, labels = mnist_digits()
    order = _balanced_order(labels, rng, per_class=(_TRAIN + _VALIDATION) // 10)
    return _enlarge(digits[order]), labels[order]


def _make_street(rng: np.random.Generator) -> Digits:
    photos, fonts = load_photos(), font_files()
    labels = np.arange(_TARGET) % 10
    images = [render.street_digit(int(digit), rng, photos, fonts) for digit in labels]
    return np.stack(images), labels


def _make_mnist_m(rng: np.random.Generator) -> Digits:
    photos = load_photos()
    digits, labels = _make_mnist(_rng("mnist"))
    held_out = digits[_TRAIN:, ..., 0]
    images = [render.digit_on_photo(digit, rng, photos) for digit in held_out]
    return np.stack(images), labels[_TRAIN:]


def _make_syn(rng: np.random.Generator) -> Digits:
    fonts = font_files()
    labels = np.arange(_TARGET) % 10
    images = [render.synthetic_digit(int(digit), rng, fonts) for digit in labels]
    return np.stack(images), labels


def _make_uci(rng: np.random.Generator) -> Digits:
    digits, labels = uci_digits()
    order = _balanced_order(labels, rng, per_class=_TARGET // 10)
    return _enlarge(np.rint(digits[order] * (255 / 16)).astype(np.uint8)), labels[order]


_RECIPES: dict[str, Callable[[np.random.Generator], Digits]] = {
    "mnist": _make_mnist,
    "street": _make_street,
    "mnist-m": _make_mnist_m,
    "syn": _make_syn,
    "uci": _make_uci,
}


def _balanced_order(
    labels: NDArray[np.int64], rng: np.random.Generator, *, per_class: int
) -> NDArray[np.int64]:
    """Shuffle indices so that classes take turns and every beginning is balanced."""
    turns = [rng.permutation(np.flatnonzero(labels == digit))[:per_class] for digit in range(10)]
    return np.stack(turns, axis=1).ravel()


def _enlarge(digits: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Resize grey digits to 32 x 32 and repeat the grey in three channels."""
    size = (render.DIGIT_SIDE, render.DIGIT_SIDE)
    images = [Image.fromarray(digit).resize(size, Image.Resampling.LANCZOS) for digit in digits]
    return np.repeat(np.stack([np.asarray(image) for image in images])[..., None], 3, axis=3)


def _versions() -> dict[str, str]:
    """Look up the versions of the packages that decide what is drawn, for the cache's key."""
    names = ("matplotlib", "mlxtend", "numpy", "pillow", "scikit-image", "scikit-learn")
    try:
        return {name: version(name) for name in names}
    except PackageNotFoundError as error:
        raise ConfigError(f"digits-mini needs the package {error.name}.", hint=_HINT) from error


def mnist_digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read mlxtend's 5,000 MNIST digits [5000, 28, 28], 500 of each class, sorted by class."""
    return _table(_file("mlxtend", "data/data/mnist_5k.csv.gz"), side=28)


def uci_digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Read scikit-learn's 1,797 UCI digits [1797, 8, 8], values 0..16."""
    return _table(_file("sklearn", "datasets/data/digits.csv.gz"), side=8)


def load_photos() -> list[Image.Image]:
    """Read RGB photos, the smallest 300 pixels high."""
    files = [_file("skimage", f"data/{name}") for name in _SKIMAGE_PHOTOS]
    files += [_file("sklearn", f"datasets/images/{name}") for name in _SKLEARN_PHOTOS]
    return [decode_image(file) for file in files]


def font_files() -> list[Path]:
    """List text fonts, upright and slanted, thin and bold, with and without serifs."""
    return [_file("matplotlib", f"mpl-data/fonts/ttf/{name}.ttf") for name in _FONTS]


def _table(file: Path, *, side: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    rows = np.loadtxt(file, delimiter=",", dtype=np.uint8)
    return rows[:, :-1].reshape(-1, side, side), rows[:, -1].astype(np.int64)


def _file(package: str, path: str) -> Path:
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"digits-mini needs the package {package}.", hint=_HINT)
    file = Path(spec.submodule_search_locations[0]) / path
    if not file.is_file():
        raise ConfigError(f"The installed {package} does not carry {path}.", hint=_HINT)
    return file
