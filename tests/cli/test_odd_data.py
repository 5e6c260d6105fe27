"""Odd folders, lists and files of published sets, given to every command that reads data.

Whatever they hold, a command ends with a promised exit code, without a traceback and without
waiting for a pipe or a device.
"""

import bz2
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from peerdg.cli.main import run
from tests.cli.stored_models import save_small_model
from tests.data.digit_files import cycle, draw, write_mat, write_mnist, write_usps
from tests.data.image_files import encode, picture, write_picture

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.filterwarnings("ignore::peerdg.errors.PeerdgWarning"),
]
PROMISED = {0, 2, 5, 7}
# fmt: off
SHORT = (
    "--backbone", "digits-cnn-half", "--weights", "none", "--transform.size", "32", "--method",
    "erm", "--pretrain.epochs", "0", "--epochs", "1", "--train.batch-size", "2", "--threads", "1",
)
# fmt: on


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_model(tmp_path_factory.mktemp("model") / "model", classes=("cat", "dog"))


def photos(root: Path) -> Path:
    """Two classes of good images, to which each case adds something odd."""
    for number, name in enumerate(("cat", "dog")):
        for index in range(3):
            write_picture(root / name / f"{index}.png", 10 * number + index)
    return root


def rows() -> list[dict[str, object]]:
    return [
        {"path": f"photos/{name}/{index}.png", "label": name}
        for name in ("cat", "dog")
        for index in range(3)
    ]


FOLDERS: dict[str, Callable[[Path], object]] = {
    "pipe": lambda cat: os.mkfifo(cat / "x.jpg"),
    "link to an endless device": lambda cat: (cat / "x.jpg").symlink_to("/dev/zero"),
    "link to a folder around it": lambda cat: (cat / "x").symlink_to("../../photos"),
    "many broken images whose names are not UTF-8": lambda cat: [
        write_bytes(cat, b"\xff%d.png" % number, b"1") for number in range(25)
    ],
    "class that is not UTF-8": lambda cat: write_class(os.fsencode(cat.parent), b"\xe4\xff"),
    "class with a line break": lambda cat: write_class(os.fsencode(cat.parent), b"a\nb\x1b[2J"),
    "folder called like an image": lambda cat: (cat / "x.jpg").mkdir(),
}  # fmt: skip


def write_bytes(folder: Path, name: bytes, content: bytes) -> None:
    Path(os.fsdecode(os.fsencode(folder) + b"/" + name)).write_bytes(content)


def write_class(folder: bytes, name: bytes) -> None:
    os.mkdir(folder + b"/" + name)
    for number in range(2):
        write_bytes(Path(os.fsdecode(folder + b"/" + name)), b"%d.png" % number, PIXELS[number])


PIXELS = [encode(picture(70 + number)) for number in range(2)]


def as_json(*added: dict[str, object]) -> Callable[[Path], Path]:
    return lambda folder: write_text(folder / "list.json", json.dumps([*rows(), *added]))


def write_text(path: Path, text: str) -> Path:
    path.write_text(text, "utf-8", newline="")
    return path


def as_parquet(**columns: object) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        plain = {key: [row[key] for row in rows()] for key in ("path", "label")}
        made = {name: make(pyarrow) if callable(make) else make for name, make in columns.items()}
        parquet.write_table(pyarrow.table({**plain, **made}), folder / "list.parquet")
        return folder / "list.parquet"

    return write


def pipe(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        os.mkfifo(folder / name)
        return folder / name

    return make


def endless(name: str) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        (folder / name).symlink_to("/dev/zero")
        return folder / name

    return make


LONE = "\ud800cat"
LISTS: dict[str, Callable[[Path], Path]] = {
    **{f"pipe {kind}": pipe(f"list.{kind}") for kind in ("csv", "parquet")},
    "endless JSON": endless("list.json"),
    "label with a lone surrogate": as_json({"path": "photos/cat/0.png", "label": LONE}),
    "path with a lone surrogate": as_json({"path": LONE, "label": "cat"}),
    "domain with a lone surrogate": as_json(
        {"path": "photos/cat/0.png", "label": "cat", "domain": LONE}
    ),
    "path with a null": as_json({"path": "photos/cat/\0.png", "label": "cat"}),
    "label that is a list": as_json({"path": "photos/cat/0.png", "label": ["cat"]}),
    "deep nesting": lambda folder: write_text(folder / "list.json", "[" * 100_000),
    "columns that are no text": lambda folder: write_text(folder / "list.json", "[{}, {}]"),
    "CSV with a long field": lambda folder: write_text(
        folder / "list.csv", f"path,label\n{'a' * 200_000},cat\n"
    ),
    "odd dates in an unused column": as_parquet(
        when=lambda pa: pa.array([10**14] * 6, pa.timestamp("s"))
    ),
    "bytes as paths": as_parquet(path=lambda pa: pa.array([b"\xff"] * 6)),
}


def digits(root: Path) -> Path:
    write_mnist(root / "MNIST", 60)
    write_mnist(root / "MNIST", 20, prefix="t10k")
    write_usps(root / "USPS", 20)
    write_mat(root / "SVHN" / "test_32x32.mat", 20)
    return root


MAT = "SVHN/test_32x32.mat"
IMAGES = draw(32, 32, 3, 20)
DIGITS: dict[str, Callable[[Path], object]] = {
    "libsvm position inf": lambda root: (root / "USPS" / "usps.t.bz2").write_bytes(
        bz2.compress(b"1 inf:0.5\n")
    ),
    "MATLAB text as labels": lambda root: savemat(root / MAT, {"X": IMAGES, "y": "x" * 20}),
    "MATLAB text as images": lambda root: savemat(root / MAT, {"X": "text", "y": cycle(20)}),
    "MATLAB empty": lambda root: savemat(
        root / MAT, {"X": np.zeros((32, 32, 3, 0), np.uint8), "y": np.zeros((0, 1))}
    ),
    "pipe for a file": lambda root: replace_by_pipe(root / MAT),
}


def replace_by_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def answers(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command; what it printed as a problem."""
    code = run(arguments, debug=False)
    shown = capsys.readouterr()
    assert code in PROMISED, (arguments, shown.err[-3000:])
    assert "Traceback" not in shown.err
    assert "Unknown option" not in shown.err
    assert code == 0 or "Error: " in shown.err
    return shown.err


def commands(data: Path, model: Path, out: Path) -> Iterator[list[str]]:
    yield ["data", "verify", str(data)]
    yield ["evaluate", str(model), str(data)]
    yield ["train", str(data), "--out", str(out / "run"), *SHORT]


@pytest.mark.parametrize("kind", FOLDERS)
def test_an_odd_folder_is_answered_by_every_command(kind, model, tmp_path, capsys):
    root = photos(tmp_path / "photos")
    FOLDERS[kind](root / "cat")
    for arguments in commands(root, model, tmp_path):
        answers(arguments, capsys)
    answers(["predict", str(model), str(root), "-o", str(tmp_path / "found.jsonl")], capsys)


@pytest.mark.parametrize("kind", LISTS)
def test_an_odd_list_is_answered_by_every_command(kind, model, tmp_path, capsys):
    photos(tmp_path / "photos")
    file = LISTS[kind](tmp_path)
    for arguments in commands(file, model, tmp_path):
        answers(arguments, capsys)
    answers(["predict", str(model), str(file)], capsys)


@pytest.mark.parametrize("kind", DIGITS)
def test_an_odd_file_of_a_published_set_is_answered(kind, model, tmp_path, capsys):
    root = digits(tmp_path / "digits")
    DIGITS[kind](root)
    answers(["data", "verify", "digits", "--root", str(root)], capsys)
    answers(["evaluate", str(model), "digits", "--root", str(root)], capsys)


def test_a_pipe_among_images_is_listed_with_the_reason(tmp_path, capsys):
    root = photos(tmp_path / "photos")
    os.mkfifo(root / "cat" / "x.jpg")
    assert run(["data", "verify", str(root)], debug=False) == 5
    assert "cat/x.jpg: it is not a file" in capsys.readouterr().out
    out = ["--out", str(tmp_path / "run")]
    assert run(["train", str(root), *SHORT, *out], debug=False) == 5
    assert "cat/x.jpg: it is not a file" in capsys.readouterr().err
    skip = "--own-data.skip-bad-images"
    assert run(["train", str(root), *SHORT, *out, skip], debug=False) == 0


def test_images_whose_names_are_not_utf8_are_used_and_recorded(model, tmp_path, capsys):
    root = photos(tmp_path / "photos")
    write_bytes(root / "cat", b"\xff.png", PIXELS[0])
    assert run(["data", "verify", str(root)], debug=False) == 0
    assert run(["train", str(root), *SHORT, "--out", str(tmp_path / "run")], debug=False) == 0
    records = "".join(p.read_text("utf-8") for p in (tmp_path / "run").rglob("*.json"))
    assert r"cat/\\udcff.png" in records
    assert run(["resume", str(tmp_path / "run")], debug=False) == 0
    found = tmp_path / "found.csv"
    assert run(["predict", str(model), str(root), "-o", str(found)], debug=False) == 0
    assert len(found.read_text("utf-8").splitlines()) == 1 + 7
    capsys.readouterr()


def missing(model: Path, run_folder: Path) -> dict[str, list[str]]:
    out = ["--out", str(run_folder)]
    return {
        "train": ["train", "no/where", *out],
        "data verify": ["data", "verify", "no/where"],
        "data show": ["data", "show", "no/where"],
        "evaluate": ["evaluate", str(model), "no/where"],
        "predict": ["predict", str(model), "no/where"],
        "train, root": ["train", "digits", "--root", "no/where", *out],
        "data verify, root": ["data", "verify", "pacs", "--root", "no/where"],
        "evaluate, root": ["evaluate", str(model), "digits", "--root", "no/where"],
    }


@pytest.mark.parametrize("kind", missing(Path(), Path()))
def test_a_missing_folder_ends_every_command_with_one_code(kind, model, tmp_path, capsys):
    assert run(missing(model, tmp_path / "run")[kind], debug=False) == 5
    assert "no/where" in capsys.readouterr().err


@pytest.mark.parametrize("command", [["train"], ["config"], ["data", "verify"], ["data", "show"]])
def test_a_misspelt_data_set_is_a_wrong_command(command, capsys):
    assert run([*command, "digitz"], debug=False) == 2
    assert "Did you mean 'digits'?" in capsys.readouterr().err


def test_a_root_that_an_embedded_set_would_not_read_is_refused(model, tmp_path, capsys):
    root = ["--root", str(photos(tmp_path / "photos"))]
    for command in (
        ["train", "digits-mini", "--out", str(tmp_path / "run")],
        ["config", "digits-mini"],
        ["data", "verify", "digits-mini"],
        ["evaluate", str(model), "digits-mini"],
    ):
        assert run([*command, *root], debug=False) == 2, command
        assert "does not read a data folder" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
