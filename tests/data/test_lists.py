import json

import pytest

from peerdg.data.folder import read_list
from peerdg.errors import ConfigError, DataError
from tests.data.image_files import touch_tree

ROWS = [
    {"path": "a/1.jpg", "label": "cat", "domain": "photo", "split": "train"},
    {"path": "a/2.jpg", "label": "dog", "domain": "photo", "split": "validation"},
    {"path": "b/3.jpg", "label": "cat", "domain": "sketch", "split": "test"},
]


@pytest.fixture(autouse=True)
def files(tmp_path):
    return touch_tree(tmp_path, "a/1.jpg", "a/2.jpg", "b/3.jpg")


def write_csv(path, rows=ROWS, delimiter=",", encoding="utf-8"):
    lines = [delimiter.join(rows[0])] + [delimiter.join(map(str, r.values())) for r in rows]
    path.write_text("\n".join(lines) + "\n", encoding)
    return path


def write_parquet(path, rows=ROWS):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(rows), path)


WRITERS = {
    "list.csv": write_csv,
    "list.tsv": lambda path: write_csv(path, delimiter="\t"),
    "semicolons.csv": lambda path: write_csv(path, delimiter=";"),
    "excel.csv": lambda path: write_csv(path, encoding="utf-8-sig"),
    "list.json": lambda path: path.write_text(json.dumps(ROWS)),
    "list.jsonl": lambda path: path.write_text("\n\n".join(map(json.dumps, ROWS)) + "\n"),
    "list.parquet": write_parquet,
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_kind_of_list_gives_the_same_images(tmp_path, name):
    WRITERS[name](tmp_path / name)
    listing = read_list(tmp_path / name)
    assert [item.path for item in listing.items] == [tmp_path / row["path"] for row in ROWS]
    assert [item.label for item in listing.items] == ["cat", "dog", "cat"]
    assert [item.split for item in listing.items] == ["train", "validation", "test"]
    assert (listing.classes, listing.domains) == (("cat", "dog"), ("photo", "sketch"))
    assert listing.splits == ("train", "validation", "test")


def test_the_suffix_decides_between_equally_frequent_separators(tmp_path):
    for name, by, other in (("l.csv", ",", "\t"), ("l.tsv", "\t", ",")):
        (tmp_path / name).write_text(f"path{by}label{by}{other}{other}x\na/1.jpg{by}cat{by}x\n")
        assert read_list(tmp_path / name).classes == ("cat",)


def test_columns_may_have_their_usual_names_in_any_case(tmp_path):
    for header in ("file,class", "FileName,Target", "image,CATEGORY", "Path,Label"):
        (tmp_path / "l.csv").write_text(f"{header}\na/1.jpg,cat\na/2.jpg,dog\n")
        assert [item.label for item in read_list(tmp_path / "l.csv").items] == ["cat", "dog"]


@pytest.mark.parametrize(
    ("labels", "classes"),
    [([0, 10, 9], ("0", "9", "10")), ([0.0, 10.0, 9.0], ("0", "9", "10")), (["b", "a", "b"], "ab")],
)
def test_labels_are_numbers_or_text(tmp_path, labels, classes):
    rows = [{**row, "label": label} for row, label in zip(ROWS, labels, strict=True)]
    (tmp_path / "l.json").write_text(json.dumps(rows))
    assert read_list(tmp_path / "l.json").classes == tuple(classes)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("path,label\na/1.jpg,cat\na/2.jpg,\n", "line 3: there is no label"),
        ("path,label\n,cat\n", "line 2: there is no path"),
        ("path,label\na/1.jpg,cat,extra\n", "line 2: the values"),
        (
            "path,label\na/1.jpg,cat\nnone.jpg,dog\n",
            r"1 of the first 2 files .*none\.jpg \(line 3\)",
        ),
        ("path,label\na/1.jpg,cat\na/../a/1.jpg,dog\n", "line 3: .*already in line 2"),
        ("path,label,split\na/1.jpg,cat,trian\n", "line 2: .*'trian'"),
        ("path,label\n", "has no images"),
        ("a/1.jpg,cat\na/2.jpg,dog\n", r"no column 'path'.*a/1\.jpg, cat"),
        ("path,label\n\x00", "line 2"),
        ('path,label\n"a/1.jpg,cat', "Cannot read the list"),
    ],
)
def test_errors_in_a_list_name_the_line(tmp_path, text, reason):
    (tmp_path / "l.csv").write_text(text)
    with pytest.raises(DataError, match=reason):
        read_list(tmp_path / "l.csv")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("l.json", b"{", "Cannot read the list"),
        ("l.json", b'{"path": "a"}', "not of the form"),
        ("l.json", b"[3]", "line 1: the values"),
        ("l.jsonl", b'{"path": "a/1.jpg", "label": 1}\n{"path":\n', "line 2: "),
        ("l.csv", b"path,label\n\xff\xfe,cat\n", "Cannot read the list"),
        ("l.json", b"[" * 100_000, "Cannot read the list"),
        ("l.xlsx", b"", "nor a list"),
        ("l.csv", None, "nor a list"),
    ],
)
def test_a_damaged_list_is_rejected(tmp_path, name, content, reason):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=reason):
        read_list(tmp_path / name)


def test_a_damaged_parquet_footer_gives_a_one_line_error(tmp_path):
    pytest.importorskip("pyarrow")
    file = tmp_path / "l.parquet"
    write_parquet(file)
    content = bytearray(file.read_bytes())
    content[-60:-20] = b"\xff" * 40
    file.write_bytes(content)
    with pytest.raises(DataError, match="Cannot read the list") as refused:
        read_list(file)
    assert "\n" not in str(refused.value)


def test_parquet_without_pyarrow_names_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    (tmp_path / "l.parquet").touch()
    with pytest.raises(ConfigError, match="pyarrow") as caught:
        read_list(tmp_path / "l.parquet")
    assert "pip install" in caught.value.hint


def test_a_json_row_without_a_label_is_rejected(tmp_path):
    (tmp_path / "l.json").write_text(json.dumps([ROWS[0], {"path": "a/2.jpg", "class": "dog"}]))
    with pytest.raises(DataError, match="line 2: there is no label"):
        read_list(tmp_path / "l.json")


def test_a_huge_list_of_missing_files_is_refused_before_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr("peerdg.data.folder.MAX_MISSING", 10)
    rows = [{"path": f"{n}.jpg", "label": "cat"} for n in range(1000)]
    with pytest.raises(DataError, match="10 of the first 10 "):
        read_list(write_csv(tmp_path / "list.csv", rows))
