"""Protocol switches of each benchmark; they are written into every run's record."""

from dataclasses import dataclass
from typing import Literal

from peerdg.config import option


@dataclass(frozen=True, kw_only=True)
class DigitsMiniSettings:
    """Switches of the embedded digits."""

    train: int = option(
        4000, "training images of the source (10 to 4000)", at_least=10, at_most=4000
    )


@dataclass(frozen=True, kw_only=True)
class DigitsSettings:
    """Switches of the Digits benchmark; the defaults are PDEN's protocol.

    The literature differs on each of them. ADA and M-ADA start at image 5,000 and rescale with
    Lanczos; ME-ADA, AdvST and RandConv rescale bilinearly; RandConv and Dassl centre the values on
    zero; JigenDG tests on all SVHN and USPS images.
    """

    first: int = option(
        0, "index of the first MNIST training image used", at_least=0, at_most=59_999
    )
    train: int = option(10_000, "MNIST training images used", at_least=1, at_most=60_000)
    resize: Literal["lanczos", "bilinear"] = option("lanczos", "filter for 28 or 16 -> 32 pixels")
    values: Literal["unit", "centred"] = option("unit", "model input: [0, 1], or (x - 0.5) / 0.5")
    svhn: Literal["test", "all"] = option("test", "SVHN images: test split, or train and test")
    usps: Literal["test", "all"] = option("test", "USPS images: test split, or train and test")
    validation: Literal["holdout", "mnist-test"] = option(
        "holdout",
        "source validation: the 2,000 MNIST images after the training ones, or MNIST test",
    )


_SPLIT_SEED = "seed of the random partition: DomainBed's trial seed"
_TEST_80 = "target images: all, or the 80 % that DomainBed tests on (random)"


@dataclass(frozen=True, kw_only=True)
class PacsSettings:
    """Switches of PACS; the defaults are the protocol of its authors, L2D and Dassl."""

    source: Literal["photo", "art_painting", "cartoon", "sketch"] = option(
        "photo", "domain to learn on; all others that are there are targets"
    )
    release: Literal["tree", "hdf5"] = option(
        "tree", "folders of images, or the hdf5 files that the authors also released"
    )
    split: Literal["official", "random"] = option(
        "official", "train and validation: the authors' kfold lists, or DomainBed's random 80/20"
    )
    test: Literal["all", "random"] = option("all", _TEST_80)
    split_seed: int = option(0, _SPLIT_SEED, at_least=0)
    lists: str | None = option(
        None, "folder with the kfold lists; default: in the usual places", is_place=True
    )
    drop_dubious: bool = option(
        False, "leave out the sketch n02103406_4068-1.png, which Dassl counts as an error"
    )


@dataclass(frozen=True, kw_only=True)
class OfficeHomeSettings:
    """Switches of Office-Home, which has no split by its authors."""

    source: Literal["art", "clipart", "product", "real_world"] = option(
        "real_world", "domain to learn on; all others that are there are targets"
    )
    split: Literal["random", "folders", "none"] = option(
        "random",
        "train and validation: DomainBed's random 80/20, Dassl's train and val folders, or "
        "everything to train and nothing to validate (Wang et al. 2021)",
    )
    test: Literal["all", "random"] = option("all", _TEST_80)
    split_seed: int = option(0, _SPLIT_SEED, at_least=0)


@dataclass(frozen=True, kw_only=True)
class VlcsSettings:
    """Switches of VLCS; the defaults are Dassl's protocol, to which PEER refers for data."""

    source: Literal["voc2007", "labelme", "caltech", "sun09"] = option(
        "voc2007", "domain to learn on; all others that are there are targets"
    )
    split: Literal["official", "random"] = option(
        "official", "train and validation: the 70 % of the split folders, or DomainBed's 80/20"
    )
    validation: Literal["crossval", "tenth"] = option(
        "crossval", "of the official 70 %: the crossval folder (Dassl), or a random tenth (JigenDG)"
    )
    test: Literal["official", "all", "random"] = option(
        "official", "target images: the 30 % of the test folders, all, or DomainBed's 80 % (random)"
    )
    split_seed: int = option(0, _SPLIT_SEED, at_least=0)


@dataclass(frozen=True, kw_only=True)
class TerraSettings:
    """Switches of Terra Incognita in DomainBed's selection of four locations."""

    source: Literal["location_100", "location_38", "location_43", "location_46"] = option(
        "location_100", "location to learn on; all others that are there are targets"
    )
    split: Literal["random", "none"] = option(
        "random", "train and validation: DomainBed's random 80/20, or everything to train"
    )
    test: Literal["all", "random"] = option("all", _TEST_80)
    split_seed: int = option(0, _SPLIT_SEED, at_least=0)


@dataclass(frozen=True, kw_only=True)
class OwnDataSettings:
    """How a folder or list of your own images is read.

    For in-memory data, only the held-out fraction and class names apply.
    """

    domain: str | None = option(None, "domain to learn on, if the folder or list has several")
    layout: Literal["auto", "classes", "domains"] = option(
        "auto", "what the first level of folders is, where looking does not tell"
    )
    validation_fraction: float = option(
        0.1, "share of the images of each class held out for validation", at_least=0, at_most=0.9
    )
    validation_folder: str | None = option(
        None, "folder or list of validation images; nothing is then held out"
    )
    split_seed: int = option(0, "seed of the draw of validation images", at_least=0)
    size: int | None = option(
        None,
        "side of the square images; default: kept if all share one square size of at most 256, "
        "else 256",
        at_least=8,
        at_most=1024,
    )
    skip_bad_images: bool = option(False, "leave out, and record, images that cannot be decoded")
    megapixels: float = option(50.0, "refuse images of more million pixels", above=0, at_most=178)
    class_map: tuple[str, ...] | None = option(
        None, "classes that targets call otherwise, e.g. Dog=dog; short: --map"
    )
