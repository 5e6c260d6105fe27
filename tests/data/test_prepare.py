import json
import tarfile
import zipfile

import pytest

from peerdg.cli.main import run
from peerdg.data import office_home, pacs, terra, vlcs
from peerdg.data.archive import Limits
from peerdg.data.benchmarks import benchmark
from peerdg.data.prepare import unpack
from peerdg.errors import ConfigError, DamagedError, DataError, OutputError
from tests.data.published_files import colour_of, expect, write_domain, write_image
from tests.data.test_pacs import ALL, write_hdf5, write_lists, write_pacs


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


def status_of(reports):
    return {(r.domain, r.split): r.status for r in reports}


@pytest.fixture
def small_pacs(monkeypatch):
    expect(monkeypatch, pacs, **dict.fromkeys(ALL, 35))
    monkeypatch.setattr(pacs, "LISTED", dict.fromkeys(ALL, (28, 7)))


@pytest.mark.usefixtures("small_pacs")
@pytest.mark.parametrize("top", ["kfold/", "PACS/", "pacs/images/", "", "my download/PACS (1)/"])
def test_pacs_is_found_below_whatever_the_archive_puts_around_it(top, tmp_path):
    archive = zip_tree(write_pacs(tmp_path / "made", lists=False), tmp_path / "PACS.zip", top=top)
    root = tmp_path / "data" / "PACS"
    placed = unpack(benchmark("pacs"), [archive], root)
    assert sorted(path.name for path in placed) == sorted(ALL)
    assert sorted(path.name for path in root.iterdir()) == sorted(ALL)
    assert {r.status for r in pacs.verify(root) if r.split == "images"} == {"found"}


@pytest.mark.usefixtures("small_pacs")
def test_lists_and_hdf5_files_go_where_the_loader_looks(tmp_path):
    write_pacs(tmp_path / "made" / "images", lists=False)
    write_lists(tmp_path / "made" / "splits")
    archive = zip_tree(tmp_path / "made", tmp_path / "pacs.zip", top="pacs/")
    binary = write_hdf5(tmp_path / "binary", ("photo",)) / "photo_train.hdf5"
    root = tmp_path / "data"
    unpack(benchmark("pacs"), [archive, binary], root)
    found = status_of(pacs.verify(root))
    assert set(found.values()) == {"found"}
    assert ("photo", "train.hdf5") in found
    assert ("sketch", "crossval list") in found
    assert binary.exists()  # copied, not moved


def test_office_home_keeps_its_classes(tmp_path, monkeypatch):
    expect(monkeypatch, office_home, art=65, real_world=65)
    for domain, folder in (("art", "Art"), ("real_world", "Real World")):
        write_domain(tmp_path / "made" / folder, domain, benchmark("office-home").classes, each=1)
    (tmp_path / "made" / "ImageInfo.csv").write_text("x")
    top = "OfficeHomeDataset_10072016/"
    archive = zip_tree(tmp_path / "made", tmp_path / "OfficeHomeDataset_10072016.zip", top=top)
    unpack(benchmark("office-home"), [archive], tmp_path / "data")
    assert sorted(p.name for p in (tmp_path / "data").iterdir()) == ["art", "real_world"]
    found = {r.domain: r.status for r in office_home.verify(tmp_path / "data")}
    assert found == {
        "real_world": "found", "art": "found", "clipart": "missing", "product": "missing"
    }  # fmt: skip


@pytest.mark.parametrize("splits", [("train", "crossval", "test"), ("",)])
def test_both_releases_of_vlcs_are_placed(splits, tmp_path, monkeypatch):
    names = ("CALTECH", "LABELME", "PASCAL", "SUN")
    expect(monkeypatch, vlcs, **dict.fromkeys(vlcs.LAYOUT.counts, 5 * len(splits)))
    monkeypatch.setattr(vlcs, "_PARTS", dict.fromkeys(vlcs.LAYOUT.counts, (10, 5)))
    for name in names:
        for number, split in enumerate(splits):
            write_domain(tmp_path / "made" / name / split, name, "01234", each=1, first=number)
    archive = tar_tree(tmp_path / "made", tmp_path / "VLCS.tar.gz", top="VLCS")
    unpack(benchmark("vlcs"), [archive], tmp_path / "data")
    assert set(status_of(vlcs.verify(tmp_path / "data")).values()) == {"found"}


def write_original_terra(folder):
    """A flat folder of images and the labels that name locations, classes and much else."""
    kinds = ["bird", "dog", "car"]
    images, annotations = [], []
    for number, (location, kind) in enumerate(
        [("38", 0), ("38", 1), ("100", 1), ("100", 2), ("7", 0), ("46", 0), ("43", 1)]
    ):
        name = f"image-{number}.png"
        write_image(folder / "eccv_18_all_images_sm" / name, colour_of("terra", kind, number))
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


def test_the_original_camera_traps_are_sorted_by_location_and_class(tmp_path):
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
        (lambda labels: labels["images"][0].update(file_name="../../x.png"), "not a plain file"),
        (lambda labels: labels["images"][0].update(file_name="none.png"), r"2 of 6 images"),
        (lambda labels: labels["images"][0].pop("location"), "not in the camera trap format"),
        (lambda labels: labels.pop("categories"), "has no images, annotations and categories"),
    ],
)
def test_labels_that_lead_elsewhere_are_refused_and_leave_nothing(change, reason, tmp_path):
    archives = original_terra(tmp_path, change)
    with pytest.raises(DataError, match=reason):
        unpack(benchmark("terra"), archives, tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_terra_sorted_already_is_placed_as_it_is(tmp_path, monkeypatch):
    expect(monkeypatch, terra, **dict.fromkeys(terra.LAYOUT.counts, 10))
    for name in terra.LAYOUT.counts:
        write_domain(tmp_path / "made" / name, name, benchmark("terra").classes, each=1)
    archive = zip_tree(tmp_path / "made", tmp_path / "t.zip", top="terra_incognita/")
    unpack(benchmark("terra"), [archive], tmp_path / "data")
    assert {r.status for r in terra.verify(tmp_path / "data")} == {"found"}


@pytest.mark.usefixtures("small_pacs")
def test_nothing_that_is_there_is_replaced(tmp_path):
    archive = zip_tree(write_pacs(tmp_path / "made", lists=False), tmp_path / "PACS.zip")
    root = tmp_path / "data"
    (root / "sketch").mkdir(parents=True)
    (root / "sketch" / "mine.txt").write_text("mine")
    with pytest.raises(OutputError, match="sketch exists already"):
        unpack(benchmark("pacs"), [archive], root)
    assert [path.name for path in root.rglob("*")] == ["sketch", "mine.txt"]


@pytest.mark.usefixtures("small_pacs")
def test_one_bad_archive_of_several_stops_all_before_anything_is_made(tmp_path):
    good = zip_tree(write_pacs(tmp_path / "made", lists=False), tmp_path / "PACS.zip")
    bad = tmp_path / "bad.zip"
    bad.write_bytes(good.read_bytes()[:-50])
    with pytest.raises(DamagedError, match=r"bad\.zip is damaged"):
        unpack(benchmark("pacs"), [good, bad], tmp_path / "data")
    with pytest.raises(DamagedError, match="larger than 10 bytes"):
        unpack(benchmark("pacs"), [good], tmp_path / "data", limits=Limits(bytes=10))
    again = zip_tree(tmp_path / "made", tmp_path / "again.zip")
    with pytest.raises(DataError, match="as another archive has"):
        unpack(benchmark("pacs"), [good, again], tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_an_archive_of_something_else_says_what_it_holds(tmp_path):
    write_domain(tmp_path / "made" / "holiday", "x", ("beach",), each=1)
    archive = zip_tree(tmp_path / "made", tmp_path / "a.zip")
    for name in ("pacs", "office-home", "vlcs", "terra"):
        with pytest.raises(DataError, match=r"no folder of .* it holds holiday"):
            unpack(benchmark(name), [archive], tmp_path / "data")
    with pytest.raises(ConfigError, match="digits is not made from archives"):
        unpack(benchmark("digits"), [archive], tmp_path / "data")


@pytest.mark.usefixtures("small_pacs")
def test_the_command_unpacks_and_verifies(tmp_path, capsys):
    write_pacs(tmp_path / "made", ("photo", "sketch"), lists=False)
    archive = zip_tree(tmp_path / "made", tmp_path / "PACS.zip", top="kfold/")
    root = tmp_path / "data"
    assert run(["data", "prepare", "pacs", str(archive), "--root", str(root)], debug=False) == 0
    said = capsys.readouterr().out
    assert "photo images" in said
    assert "cartoon: get it from https://" in said
    assert run(["data", "prepare", "pacs", str(archive), "--root", str(root)], debug=False) == 4
    assert run(["data", "prepare", "pacs", str(archive)], debug=False) == 2
    archive.write_bytes(archive.read_bytes()[:100])
    assert run(["data", "prepare", "pacs", str(archive), "--root", str(root)], debug=False) == 7


@pytest.mark.usefixtures("small_pacs")
def test_verify_ends_well_with_any_domain_and_with_code_5_with_none(tmp_path, capsys):
    write_pacs(tmp_path / "PACS", ("sketch",))
    assert run(["data", "verify", "pacs", "--root", str(tmp_path / "PACS")], debug=False) == 0
    (tmp_path / "empty").mkdir()
    assert run(["data", "verify", "pacs", "--root", str(tmp_path / "empty")], debug=False) == 5
    assert "none of its domains is under" in capsys.readouterr().err


@pytest.mark.usefixtures("small_pacs")
def test_without_archives_everything_is_decoded_into_the_cache(tmp_path, capsys):
    root = write_pacs(tmp_path / "PACS")
    assert run(["data", "prepare", "pacs", "--root", str(root)], debug=False) == 0
    assert "sketch: 35 images" in capsys.readouterr().out
