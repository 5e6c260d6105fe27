"""Targets that call classes by other names are judged as if they had the right ones."""

import json
import shutil
import tomllib
from pathlib import Path

import pytest
import torch

import peerdg
from peerdg.cli.main import run as command
from peerdg.data.benchmarks import DigitsMiniSettings, benchmark
from peerdg.data.domain import Domain
from peerdg.data.splits import Splits
from peerdg.errors import ConfigError, DataError
from tests.cli.stored_models import save_photos, save_small_model
from tests.conftest import tiny_classifier, tiny_domain
from tests.reliability.photo_run import OPTIONS, interrupt

THEIRS = {"cat": "Katze", "dog": "Doggo", "horse": "horse"}
MAP = ("--map", "Katze=cat", "--map", "Doggo=dog")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_small_model(tmp_path_factory.mktemp("stored") / "model")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`ours` and `theirs`: the same target images under other class names, and a source."""
    place = tmp_path_factory.mktemp("mapped")
    save_photos(place / "photos")
    save_photos(place / "ours/sketches", per_class=4, seed=7)
    for name, other in THEIRS.items():
        shutil.copytree(place / "ours/sketches" / name, place / "theirs/sketches" / other)
    return place


def evaluate(out: Path, *arguments: object) -> dict:
    given = ["evaluate", *map(str, arguments), "--json", str(out), "--worst", "100"]
    assert command(given, debug=False) == 0
    return json.loads(out.read_text())


def without_paths(result: dict) -> dict:
    (domain,) = result["domains"]
    worst = [{k: v for k, v in one.items() if k not in ("path", "row")} for one in domain["worst"]]
    key = json.dumps
    return {**domain, "worst": sorted(worst, key=key), "loss": round(domain["loss"], 5)}


def test_mapped_names_are_judged_as_the_right_ones(model: Path, folder: Path, tmp_path: Path):
    expected = evaluate(tmp_path / "ours.json", model, folder / "ours/sketches")
    found = evaluate(tmp_path / "theirs.json", model, folder / "theirs/sketches", *MAP)
    right, other = without_paths(expected), without_paths(found)
    for key in ("n", "correct", "confusion", "classes", "missing", "worst", "loss"):
        assert other[key] == right[key], key
    assert found["class_map"] == {"Katze": "cat", "Doggo": "dog"}
    assert "class_map" not in expected


def test_two_of_their_classes_may_be_one_of_ours(model: Path, folder: Path, tmp_path: Path):
    """Dogs in two folders, hounds and poodles, are dogs."""
    shutil.copytree(folder / "ours/sketches", tmp_path / "breeds")
    for name, photo in (("hound", "0.png"), ("poodle", "1.png")):
        (tmp_path / "breeds" / name).mkdir()
        (tmp_path / "breeds/dog" / photo).rename(tmp_path / "breeds" / name / photo)
    expected = evaluate(tmp_path / "a.json", model, folder / "ours/sketches")
    maps = ("--map", "hound=dog", "--map", "poodle=dog")
    found = evaluate(tmp_path / "b.json", model, tmp_path / "breeds", *maps)
    assert found["domains"][0]["confusion"] == expected["domains"][0]["confusion"]


@pytest.mark.parametrize(
    ("maps", "reason"),
    [
        (("Katz=cat",), "No target has the mapped class 'Katz'.\nDid you mean 'Katze'?"),
        (("Katze=cats",), "Did you mean 'cat'?"),
        (("Katze",), "'Katze'"),
        (("a=b=c",), "'a=b=c'"),
        (("Katze=cat", "Katze=dog"), "mapped twice, to 'cat' and 'dog'"),
    ],
)
@pytest.mark.parametrize("how", ["evaluate", "train"])
def test_a_map_with_names_that_nobody_has_is_refused(
    how: str, maps: tuple[str, ...], reason: str, model: Path, folder: Path, tmp_path: Path, capfd
):
    target = str(folder / "theirs/sketches")
    arguments = ["evaluate", str(model), target]
    if how == "train":
        arguments = ["train", str(folder / "photos"), "--target", target,
                     "--out", str(tmp_path / "run"), *OPTIONS]  # fmt: skip
    flags = [text for entry in maps for text in ("--map", entry)]
    assert command([*arguments, *flags], debug=False) == 2
    assert reason in capfd.readouterr().err
    assert not (tmp_path / "run").exists()


def test_an_unmapped_class_is_refused_with_the_option_that_helps(model: Path, folder: Path, capfd):
    arguments = ["evaluate", str(model), str(folder / "theirs/sketches"), "--map", "Katze=cat"]
    assert command(arguments, debug=False) == 5
    assert "--map Doggo=dog" in capfd.readouterr().err


def train(out: Path, folder: Path, target: Path, *options: str) -> int:
    given = ["train", str(folder / "photos"), "--target", str(target), "--out", str(out)]
    return command([*given, *OPTIONS, *options], debug=False)


@pytest.fixture(scope="module")
def runs(folder: Path) -> tuple[Path, Path]:
    """One run with targets named as ours, one with a map."""
    ours, theirs = folder / "run-ours", folder / "run-theirs"
    assert train(ours, folder, folder / "ours/sketches") == 0
    assert train(theirs, folder, folder / "theirs/sketches", *MAP) == 0
    return ours, theirs


def evaluations(run: Path) -> list[tuple]:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    found = [r for r in records if r["kind"] == "evaluation" and r["domain"] == "sketches"]
    assert found
    return [(r["epoch"], r["model"], r["n"], r["correct"]) for r in found]


def test_training_watches_mapped_targets(runs: tuple[Path, Path]):
    assert evaluations(runs[0]) == evaluations(runs[1])
    config = tomllib.loads((runs[1] / "config.toml").read_text())
    assert config["own-data"]["class_map"] == ["Katze=cat", "Doggo=dog"]


def test_a_resumed_run_keeps_its_map_and_takes_no_other(
    runs: tuple[Path, Path], folder: Path, tmp_path: Path, capfd
):
    out = tmp_path / "run"
    shutil.copytree(runs[1], out)
    interrupt(out)
    assert command(["resume", str(out), "--quiet"], debug=False) == 0
    assert (out / "metrics.jsonl").read_bytes() == (runs[1] / "metrics.jsonl").read_bytes()
    capfd.readouterr()
    other = ("--map", "Katze=dog", "--map", "Doggo=cat", "--resume")
    assert train(out, folder, folder / "theirs/sketches", *other) == 2
    assert "own-data.class_map" in capfd.readouterr().err


def test_evaluating_the_run_again_uses_its_map(runs: tuple[Path, Path], tmp_path: Path):
    found = evaluate(tmp_path / "r.json", runs[1])["domains"]
    last = max(evaluations(runs[1]))[0]
    task = next(e for e in evaluations(runs[1]) if e[:2] == (last, "task"))
    (sketches,) = [domain for domain in found if domain["domain"] == "sketches"]
    assert (sketches["n"], sketches["correct"]) == task[2:]


def test_a_data_set_by_name_may_be_mapped(tmp_path: Path):
    names = ("zero", *"123456789")
    stored = save_small_model(tmp_path / "model", classes=names, stored_size=32)
    arguments = (stored, "digits-mini", "--target", "uci")
    assert command(["evaluate", *map(str, arguments)], debug=False) == 5
    found = evaluate(tmp_path / "r.json", *arguments, "--map", "0=zero")["domains"][-1]
    data = benchmark("digits-mini").load(DigitsMiniSettings(), root=None, targets=["uci"])
    uci = data.targets["uci"]
    by_hand = Domain("uci", names, uci.images, uci.labels)  # their 0 is the first of ours, too
    expected = peerdg.load_model(stored).evaluate_in_detail(by_hand)
    assert found["domain"] == "uci"
    assert torch.equal(torch.tensor(found["confusion"]), expected.confusion)
    assert command(["evaluate", *map(str, arguments), "--map", "O=zero"], debug=False) in (2, 5)


SHORT = {"method": "erm", "pretrain": {"epochs": 0}, "crafted": "off",
         "train": {"epochs": 1, "batch_size": 8}}  # fmt: skip


def swapped() -> Domain:
    """A target that calls a what we call b, and b what we call a."""
    right = tiny_domain("other", n=12, seed=2)
    return Domain("other", ("b", "a", "c"), right.images, right.labels)


def test_a_map_from_python_may_swap_names(tmp_path: Path):
    splits = Splits(tiny_domain(), None, {"other": swapped()})
    mapped = {"b": "a", "a": "b"}
    run = peerdg.fit(
        splits, out=tmp_path / "run", model=tiny_classifier(), class_map=mapped, **SHORT
    )
    right = run.model.evaluate(tiny_domain("other", n=12, seed=2))
    (last,) = [r for r in run.records if r["kind"] == "evaluation" and r["epoch"] == 1]
    assert (last["correct"], last["loss"]) == (right["correct"], right["loss"])
    assert right["loss"] != run.model.evaluate(swapped())["loss"]
    with pytest.raises(ConfigError, match="class_map"):
        peerdg.fit(
            splits, out=tmp_path / "run", model=tiny_classifier(), existing="resume", **SHORT
        )


def test_a_map_from_python_is_checked(tmp_path: Path):
    splits = Splits(tiny_domain(), None, {"other": swapped()})
    for mapped, reason in (
        ({"d": "a"}, "No target has the mapped class 'd'"),
        ({"a": "d"}, "class of the model"),
        ({"a": 1}, "class map must"),
        ([("a", "b")], "class map must"),
        ({"a=b": "c"}, "a=b"),
    ):
        with pytest.raises(ConfigError, match=reason):
            peerdg.fit(
                splits, out=tmp_path / "run", model=tiny_classifier(), class_map=mapped, **SHORT
            )
    with pytest.raises(DataError, match="did you mean 'a'"):
        odd = Domain("other", ("aa", "b", "c"), swapped().images, swapped().labels)
        peerdg.fit(Splits(tiny_domain(), None, {"other": odd}), out=tmp_path / "run", **SHORT)
