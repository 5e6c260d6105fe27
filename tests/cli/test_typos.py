"""Every wrong word, value or combination ends with 2 and says what to do."""

from pathlib import Path

import pytest

from peerdg.cli.main import run
from peerdg.files import write_json

pytestmark = pytest.mark.timeout(90)  # what is accepted by mistake would train for hours

# What is typed, and what the answer must contain.
TYPOS = {
    # commands
    "trian": (["trian", "digits-mini"], "train"),
    "data lst": (["data", "lst"], "list"),
    "method": (["method"], "methods"),
    # flags
    "--peer.lambda": (["train", "digits-mini", "--peer.lambda", "1"], "--peer.lam?"),
    "--epoch": (["train", "digits-mini", "--epoch", "1"], "--epochs?"),
    "--lrr": (["train", "digits-mini", "--lrr", "0.1"], "--train.lr?"),
    "--lr": (["train", "digits-mini", "--lr", "0.1"], "--train.lr?"),
    "--batch-size": (["train", "digits-mini", "--batch-size", "8"], "--train.batch-size?"),
    "--augment.polcy": (["train", "digits-mini", "--augment.polcy", "mild"], "--augment.policy?"),
    "--size": (["train", "digits-mini", "--size", "64"], "--transform.size?"),
    "--gpu": (["train", "digits-mini", "--gpu", "0"], "--device?"),
    "--pretrained": (["train", "digits-mini", "--pretrained"], "--weights imagenet?"),
    # names
    "digit-mini": (["train", "digit-mini"], "'digits-mini'"),
    "--method pear": (["train", "digits-mini", "--method", "pear"], "'peer'"),
    "--budget qick": (["train", "digits-mini", "--budget", "qick"], "'quick'"),
    "--target mnist-n": (["train", "digits-mini", "--target", "mnist-n"], "'mnist-m'"),
    "--backbone digit-cnn": (["train", "digits-mini", "--backbone", "digit-cnn"], "'digits-cnn'"),
    # types
    "--peer.k 1.5": (["train", "digits-mini", "--peer.k", "1.5"], "whole number"),
    "--train.lr fast": (["train", "digits-mini", "--train.lr", "fast"], "float"),
    "--seed": (["train", "digits-mini", "--seed"], "--seed"),
    "--peer.w 0.01,0.1": (["train", "digits-mini", "--peer.w", "0.01,0.1"], "bench --sweep"),
    "--peer.w twice": (["train", "digits-mini", "--peer.w=1", "--peer.w=2"], "bench --sweep"),
    # ranges
    "--peer.k 0": (["train", "digits-mini", "--peer.k", "0"], "at least 1"),
    "--train.lr 0": (["train", "digits-mini", "--train.lr", "0"], "greater than 0"),
    "--train.lr nan": (["train", "digits-mini", "--train.lr", "nan"], "finite"),
    "--peer.head-dim 1e12": (["train", "digits-mini", f"--peer.head-dim={10**12}"], "at most"),
    "--digits-mini.train 5": (["train", "digits-mini", "--digits-mini.train", "5"], "at least 10"),
    # conflicts
    "--peer.k with erm": (["train", "digits-mini", "--method", "erm", "--peer.k", "1"],
                          "--method peer"),
    "--digits.first with digits-mini": (["train", "digits-mini", "--digits.first", "1"],
                                        "[digits]"),
    "--resume --overwrite": (["train", "digits-mini", "--resume", "--overwrite"], "--overwrite"),
    "resume of no run": (["resume", "/nowhere"], "peerdg train --out"),
    "digits without root": (["data", "verify", "digits"], "--root"),
    "demo --seeds 3": (["demo", "--seeds", "3"], "--seed"),
    "bench --methods erm,pear": (["bench", "digits-mini", "--methods", "erm,pear", "-o", "b"],
                                 "'peer'"),
    "bench --method": (["bench", "digits-mini", "--method", "erm", "-o", "b"], "--methods"),
    "bench --methods erm,erm": (["bench", "digits-mini", "--methods", "erm,erm", "-o", "b"],
                                "twice"),
    "bench --seeds 0": (["bench", "digits-mini", "--methods", "erm", "--seeds", "0", "-o", "b"],
                        "at least one"),
    "bench --jobs 0": (["bench", "digits-mini", "--methods", "erm", "--jobs", "0", "-o", "b"],
                       "at least 1"),
    "bench --reference pear": (["bench", "digits-mini", "--methods", "erm,peer", "-o", "b",
                                "--reference", "pear"], "'peer'"),
    "train without data": (["train"], "peerdg train photos/"),
    "two plugins": (["train", "--plugin", "a.py", "--plugin=b.py"], "twice"),
    "two data sets": (["train", "digits-mini", "digits"], "digits"),
}  # fmt: skip

FILES = {
    "sed": ("sed = 1", "'seed'"),
    "peer.wieght": ("[peer]\nwieght = 1", "peer.w"),
    "train.epoch": ("[train]\nepoch = 1", "'train.epochs'"),
    "lr at the top": ("lr = 1", "'train.lr'"),
    "number for text": ("method = 1", "text"),
    "bool for int": ("[peer]\nk = true", "type int"),
    "value for a section": ("peer = 1", "section"),
    "section for a value": ("[seed]\na = 1", "'seed' must be a single value"),
    "data misspelt": ('benchmark = "digit"', "'digits'"),
    "other method's section": ('method = "peer"\n[randaugment]\nk = 1', "--method randaugment"),
    "other data's section": ("[digits]\nfirst = 1", "[digits]"),
    "choice misspelt": ('[peer]\nbn = "freeze"', "'frozen'"),
    "plugin of a built-in method": ('method = "erm"\nplugin = "mine.py"', "Remove"),
    "not TOML": ("seed: 1", "line 1"),
}


def ask(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert run(arguments, debug=False) == 2
    said = capsys.readouterr().err
    assert said.startswith("Error: ")
    assert "Traceback" not in said
    return said


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A typo that is accepted would train into this folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", TYPOS)
def test_a_wrong_command_is_refused_with_the_right_suggestion(
    name: str, capsys: pytest.CaptureFixture[str], elsewhere: Path
):
    arguments, suggestion = TYPOS[name]
    said = ask(arguments, capsys)
    assert suggestion in said
    assert list(elsewhere.iterdir()) == []  # nothing was begun


@pytest.mark.parametrize("name", FILES)
def test_a_wrong_config_file_is_refused_with_the_right_suggestion(
    name: str, capsys: pytest.CaptureFixture[str], elsewhere: Path
):
    content, suggestion = FILES[name]
    (elsewhere / "mine.toml").write_text(content)
    said = ask(["train", "--config", "mine.toml"], capsys)
    assert suggestion in said
    assert [path.name for path in elsewhere.iterdir()] == ["mine.toml"]


def test_a_config_file_that_is_not_there_or_not_text_is_refused(
    capsys: pytest.CaptureFixture[str], elsewhere: Path
):
    assert "none.toml" in ask(["train", "--config", "none.toml"], capsys)
    (elsewhere / "mine.toml").write_bytes(b"\xff\xfe\x00")
    assert "mine.toml" in ask(["train", "--config", "mine.toml"], capsys)
    assert "mine.toml" in ask(["train", "--config", "mine.toml/x"], capsys)


def test_a_misspelt_folder_is_answered_with_the_nearest(
    capsys: pytest.CaptureFixture[str], elsewhere: Path
):
    write_json(elsewhere / "photos/1.jpg", {})
    write_json(elsewhere / "runs/photos-peer-0/config.toml", {})
    for arguments, meant in [
        (["train", "phots/"], "photos?"),
        (["resume", "runs/photos-per-0"], "runs/photos-peer-0?"),
        (["evaluate", "runs/photos-per-0"], "runs/photos-peer-0? `peerdg runs runs`"),
        (["predict", "runs/photos-per-0", "photos"], "runs/photos-peer-0? `peerdg runs runs`"),
        (
            ["export", "runs/photos-per-0", "--format=onnx"],
            "runs/photos-peer-0? `peerdg runs runs`",
        ),
    ]:
        assert run(arguments, debug=False) in (2, 5)
        assert f"Did you mean {meant}" in capsys.readouterr().err


def test_an_unknown_device_and_unknown_weights_are_refused(
    capsys: pytest.CaptureFixture[str], elsewhere: Path
):
    small = ["train", "digits-mini", "--target", "uci"]
    assert "--device cpu" in ask([*small, "--device", "gpu", "--out", "a"], capsys)
    assert "--weights none" in ask([*small, "--weights", "imagenet", "--out", "b"], capsys)
    assert run([*small, "--weights", "none.pth", "--out", "c"], debug=False) == 5
