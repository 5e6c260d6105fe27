import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Subset, TensorDataset

from peerdg.data.objects import as_domain
from peerdg.errors import DataError
from tests.data.image_files import encode, picture

PICTURES = [picture(seed) for seed in range(6)]
PIXELS = torch.from_numpy(np.stack([np.asarray(p) for p in PICTURES])).permute(0, 3, 1, 2)
ROWS = (0, 1, 2, 0, 1, 2)
LABELS = torch.tensor(ROWS)
CLASSES = ("ant", "bee", "cow")


class Dataset:
    """A dataset like torchvision's: a length, items (image, label), and class names."""

    def __init__(self, images=PICTURES, labels=ROWS, classes=("ant", "bee", "cow")):
        self.images, self.labels = images, labels
        if classes:
            self.classes = list(classes)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, row):
        return self.images[row], self.labels[row]


class ClassLabel:
    names = ("ant", "bee", "cow")


class HuggingFaceImage:
    pass


HuggingFaceImage.__name__ = "Image"


class HuggingFace:
    """A dataset like `datasets.Dataset`: features by column, rows as dictionaries."""

    def __init__(self, images=PICTURES, column="picture", labels=ROWS):
        self.images, self.column, self.labels = images, column, labels
        self.features = {"id": object(), column: HuggingFaceImage(), "animal": ClassLabel()}
        self.column_names = list(self.features)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, row):
        return {"id": row, self.column: self.images[row], "animal": self.labels[row]}


@pytest.mark.parametrize(
    "data",
    [
        (PIXELS, LABELS),
        (PIXELS.permute(0, 2, 3, 1).numpy(), LABELS.numpy()),
        [PIXELS.float() / 255, LABELS.to(torch.int32)],
        Dataset(),
        Dataset(images=list(PIXELS), labels=list(LABELS)),
        Dataset(images=[np.asarray(p) for p in PICTURES], labels=list(LABELS.numpy())),
        TensorDataset(PIXELS.double() / 255, LABELS),
        (PICTURES, ROWS),
        (list(PIXELS), [CLASSES[row] for row in ROWS]),
        (PIXELS, [CLASSES[row] for row in ROWS]),
        (PIXELS.numpy(), np.array([CLASSES[row] for row in ROWS])),
        Dataset(labels=[CLASSES[row] for row in ROWS]),
        [(image, row) for image, row in zip(PICTURES, ROWS, strict=True)],
        Subset(Dataset(), [0, 1, 2, 3, 4, 5]),
        HuggingFace(),
        HuggingFace([{"bytes": encode(p), "path": None} for p in PICTURES]),
    ],
    ids=lambda data: type(data).__name__,
)
def test_all_forms_of_the_same_images_give_the_same_domain(data):
    domain = as_domain(data, name="toys", classes=("ant", "bee", "cow"))
    assert (domain.name, domain.classes) == ("toys", ("ant", "bee", "cow"))
    assert torch.equal(domain.images, PIXELS)
    assert torch.equal(domain.labels, LABELS)


@pytest.mark.parametrize("data", [Dataset(), Subset(Dataset(), [2, 1]), HuggingFace()])
def test_class_names_come_from_the_dataset(data):
    assert as_domain(data).classes == ("ant", "bee", "cow")


def test_numbers_that_do_not_occur_are_not_classes():
    domain = as_domain((PIXELS, [7, 10, 7, 2**40, 10, 7]))
    assert domain.classes == ("7", "10", str(2**40))
    assert domain.labels.tolist() == [0, 1, 0, 2, 1, 0]
    with pytest.raises(DataError, match="from 0 to 2, but there are 2 classes"):
        as_domain((PIXELS, LABELS), classes=("ant", "bee"))


def test_files_named_by_a_dataset_are_read(tmp_path):
    PICTURES[0].save(tmp_path / "a.png")
    rows = [{"bytes": None, "path": str(tmp_path / "a.png")}]
    domain = as_domain(HuggingFace(rows))
    assert torch.equal(domain.images[0], PIXELS[0])
    assert as_domain(domain, name="other") is domain


def test_gray_images_are_repeated_in_three_channels():
    gray = torch.arange(2 * 5 * 5, dtype=torch.uint8).reshape(2, 5, 5)
    for images in (gray, gray.unsqueeze(1), gray.unsqueeze(3)):
        domain = as_domain((images, torch.tensor([0, 1])))
        assert torch.equal(domain.images, gray.unsqueeze(1).expand(-1, 3, -1, -1))


def test_mixed_sizes_become_256_or_the_given_size():
    mixed = Dataset([picture(0, (20, 30)), picture(1, (40, 40))], [0, 1])
    assert as_domain(mixed).image_size == (256, 256)
    assert as_domain(mixed, size=32).image_size == (32, 32)
    assert as_domain(Dataset(), size=12).image_size == (12, 12)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (3, "Cannot convert int"),
        ({"train": Dataset(), "test": Dataset()}, r"got several .*train, test"),
        ((PIXELS.float(), LABELS), "values outside 0..1"),
        ((PIXELS, LABELS.float()), "types: float"),
        ((PICTURES, ROWS[:3]), "6 images but 3 labels"),
        ((PIXELS, None), "must be a sequence, not NoneType"),
        ((PIXELS, torch.eye(6, dtype=torch.int64)), r"\(6, 6\)"),
        ((PIXELS, [0, 1, 2, -1, 0, 1]), "negative label -1"),
        ((PIXELS, [0, "ant", 1, 2, 0, 1]), "types: int, str"),
        ((PIXELS, np.array([None] * 6)), "types: NoneType"),
        ((torch.where(PIXELS > 9, PIXELS / 255.0, torch.nan), LABELS), "NaN or infinite"),
        ((PIXELS.long(), LABELS), "has torch.int64 values"),
        ((PIXELS.numpy().astype(object), LABELS), "arrays of type object"),
        ("photos", "'photos' is a path"),
        (DataLoader(TensorDataset(PIXELS, LABELS)), r"convert DataLoader .*\nPass its .dataset"),
        ((PIXELS[:, :2], LABELS), r"\(6, 2, 24, 24\)"),
        (Dataset([], []), "no images"),
        (Dataset(["none.png"], [0]), "No such file"),
        (Dataset([3], [0]), "image 0 of 'source' has an unsupported type or shape: int"),
        (Dataset(PICTURES[:1], ["cat"]), "label 'cat'"),
        (Dataset(PICTURES[:1], [1.5]), "types: float"),
        (Dataset([Image.new("F", (4, 4))], [0]), "floats"),
        ([PICTURES[0]], "must be \\(image, label\\), not Image"),
    ],
)
def test_unusable_data_is_rejected_with_the_reason(data, reason):
    with pytest.raises(DataError, match=reason):
        as_domain(data)


def test_error_without_an_image_column_names_all_columns():
    data = HuggingFace()
    del data.features["picture"]
    with pytest.raises(DataError, match="no column of type Image"):
        as_domain(data)
