import io
import tarfile
import zipfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from peerdg.data.archive import Limits, check, extract
from peerdg.errors import DamagedError

TREE = {
    "PACS/photo/dog/056_0001.jpg": bytes(range(256)) * 40,
    "PACS/photo/dog/empty.txt": b"",
    "PACS/Real World/Küche/a.jpg": b"jpeg",
    "PACS/" + "long/" * 40 + "name-" * 30 + ".png": b"long",
}


def write_zip(path, tree, *, method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", method) as file:
        file.mkdir("PACS")
        for name, content in tree.items():
            file.writestr(name, content)


def write_streamed_zip(path, tree):
    """As to a pipe: sizes stand after the content, and the headers have none."""
    buffer = io.BytesIO()
    buffer.seekable = lambda: False
    write_zip(buffer, tree)
    path.write_bytes(buffer.getvalue())


def write_large_zip(path, tree):
    """With 64-bit sizes in the entries' own headers."""
    with zipfile.ZipFile(path, "w") as file:
        for name, content in tree.items():
            with file.open(name, "w", force_zip64=True) as entry:
                entry.write(content)


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
    "zip stored": lambda p, t: write_zip(p, t, method=zipfile.ZIP_STORED),
    "zip streamed": write_streamed_zip,
    "zip with 64-bit sizes": write_large_zip,
    "tar": write_tar,
    "tar pax": lambda p, t: write_tar(p, t, format=tarfile.PAX_FORMAT),
    "tar from a dot": lambda p, t: write_tar(p, t, prefix="./"),
    "tar.gz": lambda p, t: write_tar(p, t, mode="w:gz"),
    "tar.bz2": lambda p, t: write_tar(p, t, mode="w:bz2"),
    "tar.xz": lambda p, t: write_tar(p, t, mode="w:xz", format=tarfile.PAX_FORMAT),
}


def files_under(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.mark.parametrize("kind", WRITERS)
def test_every_kind_gives_back_what_was_packed(kind, tmp_path):
    archive = tmp_path / "anything"  # the kind is found by content
    WRITERS[kind](archive, TREE)
    assert extract(archive, tmp_path / "target") == len(TREE)
    assert files_under(tmp_path / "target") == TREE
    assert {p.name for p in tmp_path.iterdir()} == {"anything", "target"}


def test_old_tar_names_with_a_prefix_are_joined(tmp_path):
    tree = {"folder/" * 20 + "name.jpg": b"x"}  # 148 characters: too long for the name field
    write_tar(tmp_path / "a.tar", tree, format=tarfile.USTAR_FORMAT)
    extract(tmp_path / "a.tar", tmp_path / "target")
    assert files_under(tmp_path / "target") == tree


NAMES = st.text("abcdé ._-", min_size=1, max_size=12).filter(lambda n: n.strip(". ") == n)
TREES = st.dictionaries(
    st.lists(NAMES, min_size=2, max_size=3).map("/".join), st.binary(max_size=3000), max_size=8
)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(tree=TREES, kind=st.sampled_from(sorted(WRITERS)))
def test_any_tree_of_files_comes_back_or_is_refused_for_a_shared_name(tree, kind, tmp_path_factory):
    folder = tmp_path_factory.mktemp("tree")
    WRITERS[kind](folder / "archive", tree)
    if any(other.startswith(f"{name}/") for name in tree for other in tree):
        with pytest.raises(DamagedError, match="a file and a folder"):
            extract(folder / "archive", folder / "target")
    else:
        assert extract(folder / "archive", folder / "target") == len(tree)
        assert files_under(folder / "target") == tree


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    kind=st.sampled_from(sorted(WRITERS)),
    place=st.floats(0, 0.9999),
    byte=st.integers(1, 255),
)
def test_a_changed_byte_is_found_or_changes_nothing_that_matters(
    kind, place, byte, tmp_path_factory
):
    folder = tmp_path_factory.mktemp("changed")
    archive = folder / "archive"
    WRITERS[kind](archive, TREE)
    data = bytearray(archive.read_bytes())
    data[int(place * len(data))] ^= byte
    archive.write_bytes(data)
    try:
        extract(archive, folder / "target")
    except DamagedError:
        assert {path.name for path in folder.iterdir()} == {"archive"}
    else:
        assert not any(".." in path.parts for path in (folder / "target").rglob("*"))
        assert {path.name for path in folder.iterdir()} == {"archive", "target"}


def test_progress_ends_at_the_total(tmp_path):
    write_zip(tmp_path / "a.zip", TREE)
    seen = []
    extract(tmp_path / "a.zip", tmp_path / "target", progress=lambda *now: seen.append(now))
    total = sum(map(len, TREE.values()))
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_checking_counts_without_writing(tmp_path):
    write_tar(tmp_path / "a.tar.gz", TREE, mode="w:gz")
    contents = check(tmp_path / "a.tar.gz")
    assert (contents.files, contents.bytes) == (len(TREE), sum(map(len, TREE.values())))
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar.gz"]


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        (Limits(files=3), "more than 3 files|lists"),
        (Limits(bytes=100), "larger than 100 bytes"),
        (Limits(ratio=0.1, ratio_from=0), "0.1 times as large"),
    ],
)
@pytest.mark.parametrize("kind", ["zip", "tar.gz"])
def test_each_limit_is_an_option(kind, limits, reason, tmp_path):
    WRITERS[kind](tmp_path / "archive", TREE)
    with pytest.raises(DamagedError, match=reason):
        extract(tmp_path / "archive", tmp_path / "target", limits=limits)


def test_an_empty_archive_gives_an_empty_folder(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w"):
        pass
    assert extract(tmp_path / "a.zip", tmp_path / "target") == 0
    assert list((tmp_path / "target").iterdir()) == []


def test_a_missing_archive_is_named(tmp_path):
    with pytest.raises(DamagedError, match=r"no archive .*a\.zip"):
        extract(tmp_path / "a.zip", tmp_path / "target")
