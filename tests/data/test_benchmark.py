from dataclasses import asdict

import numpy as np

from peerdg.data.benchmarks import inspect
from peerdg.errors import DataError

ABOUT = {"domain": "toy", "split": "test", "obtain": "somewhere", "licence": "CC0"}


def content(count=3, value=0):
    return np.full((count, 4, 4), value, np.uint8), np.zeros(count, np.int64)


def test_the_published_number_of_images_is_found():
    report = inspect(content, expected=3, **ABOUT)
    assert (report.status, report.count, report.problems) == ("found", 3, ())


def test_another_number_of_images_is_unexpected():
    report = inspect(content, expected=4, **ABOUT)
    assert report.status == "unexpected"
    assert report.problems == ("3 images where 4 are published.",)


def test_an_error_of_the_data_is_damage_and_keeps_its_words():
    def read():
        raise DataError("a.gz is cut short.", hint="Fetch it again.")

    report = inspect(read, expected=3, **ABOUT)
    assert (report.status, report.count, report.checksum) == ("damaged", None, None)
    assert report.problems == ("a.gz is cut short.",)


def test_the_checksum_depends_on_images_labels_and_shape():
    images, labels = content()
    variants = [
        (images, labels),
        (images + 1, labels),
        (images, labels + 1),
        (images.reshape(3, 2, 8), labels),
    ]
    checksums = {inspect(lambda v=v: v, expected=3, **ABOUT).checksum for v in variants}
    assert len(checksums) == 4


def test_a_report_is_plain_data():
    values = asdict(inspect(content, expected=3, **ABOUT))
    assert {type(value) for value in values.values()} <= {str, int, bool, tuple, type(None)}
