"""`peerdg data verify`, `show` and `cache` on a user's own images."""

import pytest
from PIL import Image

from peerdg.cli.main import run
from tests.data.image_files import make_tree


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("PEERDG_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def photos(tmp_path):
    return make_tree(tmp_path / "photos", "cat", "dog", count=6)


def peerdg(*arguments) -> int:
    return run([str(argument) for argument in arguments], debug=False)


def test_a_sound_folder_is_verified_with_code_0(photos, capsys):
    assert peerdg("data", "verify", photos) == 0
    output = capsys.readouterr().out
    assert "photos" in output
    assert "All images can be decoded." in output


def test_every_problem_of_a_folder_is_shown_with_its_remedy_and_code_5(photos, capsys):
    (photos / "cat/bad.jpg").write_text("no image")
    (photos / "horse").mkdir()
    assert peerdg("data", "verify", photos) == 5
    shown = capsys.readouterr()
    assert "cat/bad.jpg: it is not an image in a known format" in shown.out
    assert "class folders without images: horse" in shown.out
    assert "Add images, or remove the folders." in shown.out
    assert "2 problems must be fixed" in shown.err


def test_images_in_two_folders_are_found_when_both_are_named(photos, tmp_path, capsys):
    other = make_tree(tmp_path / "others", "cat", count=6)
    assert peerdg("data", "verify", photos, other) == 5  # one class cannot be trained on
    assert "6 images are duplicates: photos: cat/0.png = others: cat/0.png" in (
        capsys.readouterr().out.replace("\n", " ")
    )


def test_a_data_set_and_a_folder_cannot_be_verified_together(photos, capsys):
    assert peerdg("data", "verify", "digits-mini", photos) == 2
    assert "together" in capsys.readouterr().err


def test_a_contact_sheet_of_a_folder_is_written(photos, tmp_path):
    assert peerdg("data", "show", photos, "-o", tmp_path / "sheet.png") == 0
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.width >= 320


def test_the_cache_shows_what_was_decoded_and_can_be_cleared(photos, folder, capsys):
    peerdg("data", "verify", photos)
    capsys.readouterr()
    assert peerdg("data", "cache") == 0
    output = capsys.readouterr().out
    assert "photos" in output
    assert "1 entries, " in output
    assert str(folder) in output.replace("\n", "")
    assert peerdg("data", "cache", "--clear", "photo") == 2
    assert "Did you mean 'photos'?" in capsys.readouterr().err
    assert peerdg("data", "cache", "--clear", "photos") == 0
    assert list(folder.glob("*.safetensors")) == []
    assert peerdg("data", "cache", "--clear") == 0
    assert [path for path in folder.rglob("*") if path.is_file()] == []


def test_verifying_decodes_for_the_training_that_follows(photos, monkeypatch):
    from peerdg.data import own_data, read
    from peerdg.data.benchmarks import OwnDataSettings

    peerdg("data", "verify", photos)
    monkeypatch.setattr(read, "decode_image", None)
    splits = own_data.load(OwnDataSettings(), root=photos)
    assert len(splits.train) + len(splits.validation) == 12
