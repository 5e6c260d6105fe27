import io
import json
import tarfile
import zipfile
from shutil import rmtree

import pytest

from peerdg.cli.main import run
from peerdg.data import published
from peerdg.data.archive import extract, unpack
from peerdg.data.benchmarks import PacsSettings, benchmark
from peerdg.errors import ConfigError, DamagedError, DataError, OutputError
from tests.data.published_files import color_of, write_domain, write_image
from tests.data.test_pacs import ALL, small_counts, write_lists, write_pacs

__all__ = ["small_counts"]  # an autouse fixture

TREE = {
    "PACS/photo/dog/056_0001.jpg": bytes(range(256)) * 40,
    "PACS/photo/dog/empty.txt": b"",
    "PACS/Real World/Küche/a.jpg": b"jpeg",
    "PACS/" + "long/" * 40 + "name-" * 30 + ".png": b"long",
}


def write_zip(path, tree):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.mkdir("PACS")
        for name, content in tree.items():
            file.writestr(name, content)


def write_tar(path, tree, *, mode="w", format=tarfile.GNU_FORMAT, prefix=""):
    with tarfile.open(path, mode, format=format) as file:
        folder = tarfile.TarInfo(f"{prefix}PACS")
        folder.type, folder.mode = tarfile.DIRTYPE, 0o755
        file.addfile(folder)
        for name, content in tree.items():
            info = tarfile.TarInfo(prefix + name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))


WRITERS = {
    "zip": write_zip,
    "tar pax": lambda p, t: write_tar(p, t, format=tarfile.PAX_FORMAT),
    "tar from a dot": lambda p, t: write_tar(p, t, prefix="./"),
    "tar.gz": lambda p, t: write_tar(p, t, mode="w:gz"),
    "tar.xz": lambda p, t: write_tar(p, t, mode="w:xz", format=tarfile.PAX_FORMAT),
}


def files_under(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.mark.parametrize("kind", WRITERS)
def test_every_archive_format_is_extracted(kind, tmp_path):
    archive = tmp_path / "anything"  # the format is detected from the content
    with pytest.raises(DamagedError, match="does not exist"):
        extract(archive, tmp_path / "target")
    WRITERS[kind](archive, TREE)
    extract(archive, tmp_path / "target")
    assert files_under(tmp_path / "target") == TREE
    assert {p.name for p in tmp_path.iterdir()} == {"anything", "target"}


def zip_tree(folder, archive, *, top=""):
    with zipfile.ZipFile(archive, "w") as file:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                file.write(path, f"{top}{path.relative_to(folder).as_posix()}")
    return archive


def tar_tree(folder, archive, *, top):
    with tarfile.open(archive, "w:gz") as file:
        file.add(folder, top)
    return archive


def test_pacs_and_its_lists_are_found_after_extraction(tmp_path):
    write_pacs(tmp_path / "made" / "images", lists=False)
    write_lists(tmp_path / "made" / "splits")
    archive = zip_tree(tmp_path / "made", tmp_path / "pacs.zip", top="pacs/")
    root = tmp_path / "data" / "PACS"
    domains = unpack(benchmark("pacs"), [archive], root)
    assert sorted(path.name for path in domains) == sorted(ALL)
    assert {r.status for r in published.PACS.verify(root)} == {"found"}
    assert len(benchmark("pacs").load(PacsSettings(), root=root).train) == 28


def write_original_terra(folder):
    """A flat folder of images, and labels with locations, classes and other values."""
    kinds = ["bird", "dog", "car"]
    images, annotations = [], []
    for number, (location, kind) in enumerate(
        [("38", 0), ("38", 1), ("100", 1), ("100", 2), ("7", 0), ("46", 0), ("43", 1)]
    ):
        name = f"image-{number}.png"
        write_image(folder / "eccv_18_all_images_sm" / name, color_of("terra", kind, number))
        images.append({"id": f"i{number}", "file_name": name, "location": location})
        annotations.append({"image_id": f"i{number}", "category_id": kind})
    annotations.append({"image_id": "i0", "category_id": 1})  # a bird and a dog
    categories = [{"id": i, "name": name} for i, name in enumerate(kinds)]
    return {"images": images, "annotations": annotations, "categories": categories}


def original_terra(tmp_path, change=lambda labels: None):
    labels = write_original_terra(tmp_path / "made")
    change(labels)
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "caltech_images_20210113.json").write_text(json.dumps(labels))
    return [
        tar_tree(tmp_path / "made", tmp_path / "eccv_18_all_images_sm.tar.gz", top="."),
        zip_tree(tmp_path / "labels", tmp_path / "caltech_camera_traps.json.zip"),
    ]


def test_original_terra_images_are_sorted_by_location_and_class(tmp_path):
    unpack(benchmark("terra"), original_terra(tmp_path), tmp_path / "data")
    files = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert sorted(path.relative_to(tmp_path / "data").as_posix() for path in files) == [
        "location_100/dog/image-2.png",
        "location_38/bird/image-0.png",
        "location_38/dog/image-0.png",
        "location_38/dog/image-1.png",
        "location_43/dog/image-6.png",
        "location_46/bird/image-5.png",
    ]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda labels: labels["images"][0].update(file_name="../../x.png"), "2 of 6 images"),
        (lambda labels: labels["images"][0].update(file_name="none.png"), "2 of 6 images"),
        (lambda labels: labels["images"][0].pop("location"), "'location'"),
        (lambda labels: labels.pop("categories"), "'categories'"),
    ],
)
def test_invalid_labels_are_rejected_and_leave_no_files(change, reason, tmp_path):
    archives = original_terra(tmp_path, change)
    with pytest.raises((DataError, DamagedError), match=reason):
        unpack(benchmark("terra"), archives, tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_existing_files_are_not_replaced(tmp_path):
    archive = zip_tree(write_pacs(tmp_path / "made", lists=False), tmp_path / "PACS.zip")
    root = tmp_path / "data"
    (root / "sketch").mkdir(parents=True)
    with pytest.raises(OutputError, match="not empty"):
        unpack(benchmark("pacs"), [archive], root)
    assert [path.name for path in root.rglob("*")] == ["sketch"]


def test_one_bad_archive_prevents_all_output(tmp_path):
    good = zip_tree(write_pacs(tmp_path / "made", lists=False), tmp_path / "PACS.zip")
    bad = tmp_path / "bad.zip"
    bad.write_bytes(good.read_bytes()[:-50])
    with pytest.raises(DamagedError, match=r"bad\.zip"):
        unpack(benchmark("pacs"), [good, bad], tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_the_command_unpacks_and_verifies(tmp_path, capsys):
    write_pacs(tmp_path / "made", ("photo", "sketch"), lists=False)
    archive = zip_tree(tmp_path / "made", tmp_path / "PACS.zip", top="kfold/")
    root = tmp_path / "data"
    assert run(["data", "prepare", "pacs", str(archive), "--root", str(root)], debug=False) == 0
    output = capsys.readouterr().out
    assert "photo images" in output
    assert "cartoon" in output and "https://" in output
    assert run(["data", "prepare", "pacs", str(archive), "--root", str(root)], debug=False) == 4
    assert run(["data", "prepare", "pacs", str(archive)], debug=False) == 2
    archive.write_bytes(archive.read_bytes()[:100])
    assert run(["data", "prepare", "pacs", str(archive), "--root", f"{root}2"], debug=False) == 7


def test_verify_succeeds_with_any_domain_and_fails_with_none(tmp_path, capsys):
    root = write_pacs(tmp_path / "PACS", ("photo", "sketch"))
    assert run(["data", "prepare", "pacs", "--root", str(root)], debug=False) == 0
    assert "sketch: 35 images" in capsys.readouterr().out
    rmtree(root / "photo")
    assert run(["data", "verify", "pacs", "--root", str(root)], debug=False) == 0
    (tmp_path / "empty").mkdir()
    assert run(["data", "verify", "pacs", "--root", str(tmp_path / "empty")], debug=False) == 5
    assert "no source images" in capsys.readouterr().err


def test_an_archive_of_other_data_is_rejected(tmp_path):
    write_domain(tmp_path / "made" / "holiday", "x", ("beach",), each=1)
    archive = zip_tree(tmp_path / "made", tmp_path / "a.zip")
    for name in ("pacs", "terra"):
        with pytest.raises(DataError, match="none of"):
            unpack(benchmark(name), [archive], tmp_path / "data")
    with pytest.raises(ConfigError, match="no archives to unpack"):
        unpack(benchmark("digits"), [archive], tmp_path / "data")
