import shutil

import pytest

from peerdg.data.check import check_folders
from peerdg.errors import DataError
from tests.data.image_files import encode, make_tree, picture, write_picture


@pytest.fixture
def photos(tmp_path):
    return make_tree(tmp_path / "photos", "cat", "dog", count=6)


def messages(report, severity=None) -> str:
    return "\n".join(p.message for p in report.problems if severity in (None, p.severity))


def test_a_sound_folder_has_no_problems(photos):
    report = check_folders([photos])
    assert report.problems == ()
    assert {name: len(domain) for name, domain in report.parts.items()} == {"photos": 12}


def test_every_bad_file_is_listed_with_its_reason_and_a_remedy(photos):
    (photos / "cat/empty.png").write_bytes(b"")
    (photos / "dog/text.jpg").write_text("hello")
    (problem,) = check_folders([photos]).errors
    assert "2 of 14 images of 'photos'" in problem.message
    assert "cat/empty.png: the file is empty" in problem.message
    assert "dog/text.jpg: it is not an image in a known format" in problem.message
    assert "skip-bad-images" in problem.remedy


def test_copies_are_named_by_what_they_spoil(photos, tmp_path):
    shutil.copy(photos / "cat/0.png", photos / "dog/copy.png")
    shutil.copy(photos / "cat/1.png", photos / "cat/copy.png")
    other = make_tree(tmp_path / "sketches", *"abcdefgh", "cat", "dog", count=6)
    for name in "abcdefgh":
        shutil.rmtree(other / name)
    (other / "dog/same.bmp").write_bytes(encode(picture(102), "BMP"))  # dog/2 in another format
    text = messages(check_folders([photos, other]), "note")
    assert "1 images are in two classes: photos: cat/0.png = photos: dog/copy.png" in text
    assert "1 images are there twice: photos: cat/1.png = photos: cat/copy.png" in text
    assert "1 images are in two parts: photos: dog/2.png = sketches: dog/same.bmp" in text


def test_small_classes_sizes_types_and_ignored_files_are_noted(photos):
    for index in range(2):
        write_picture(photos / "fox" / f"{index}.png", 500 + index, (30, 20))
    (photos / "cat/really.jpg").write_bytes(encode(picture(900)))
    (photos / "cat/phone.heic").touch()
    report = check_folders([photos])
    text = messages(report, "note")
    assert "1 classes of 'photos' have fewer than 5 images: fox (2)" in text
    assert "2 sizes, most often 24 x 24 (13), 30 x 20 (2)" in text
    assert "1 files are of another type than their name says: cat/really.jpg (PNG)" in text
    assert "1 files of other types are ignored: cat/phone.heic" in text
    assert report.errors == []


def test_problems_of_the_tree_are_part_of_the_report(photos):
    (photos / "horse").mkdir()
    write_picture(photos / "Dog/1.png", 700)
    (photos / "dog/1.heic").touch()
    report = check_folders([photos])
    assert "no images in the class horse" in messages(report, "training")
    assert "a class with one image only: Dog" in messages(report, "training")
    assert "'Dog' and 'dog'" in messages(report, "error")
    assert report.problems[-1].severity == "note"


def test_each_domain_of_a_tree_is_a_part(tmp_path):
    tree = make_tree(tmp_path, "photo/cat", "photo/dog", "sketch/cat", "sketch/dog", count=5)
    report = check_folders([tree])
    assert report.counts == {"photo": 10, "sketch": 10}
    assert [(r.domain, r.status) for r in report.domains()] == [
        ("photo", "found"),
        ("sketch", "found"),
    ]


def test_a_folder_without_images_is_an_error(tmp_path):
    with pytest.raises(DataError, match="no images"):
        check_folders([tmp_path])
