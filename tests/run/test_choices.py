import itertools
import shutil
from pathlib import Path

import pytest
from PIL import Image

from peerdg.cli.main import run
from peerdg.errors import PeerdgWarning
from peerdg.run.config import notes, resolve, resolve_own_data
from peerdg.run.presets import BUDGETS, choose, origins, reason
from tests.conftest import tiny_splits


def folder(root: Path, *, side: int = 40, each: int = 6) -> Path:
    for label, color in {"cat": "red", "dog": "blue", "owl": "green"}.items():
        (root / label).mkdir(parents=True)
        for number in range(each):
            image = Image.new("RGB", (side, side), color)
            image.putpixel((number, 0), (255, 255, 255))
            image.save(root / label / f"{number}.png")
    return root


@pytest.mark.parametrize("side", [16, 48, 49, 3000])
def test_whatever_the_images_the_choices_make_a_run_without_surprises(side):
    for budget, images in itertools.product(BUDGETS, (3, 300, 1500, 50_000)):
        choices = choose(images=images, side=side, budget=budget)
        for method in ("erm", "randaugment", "peer"):
            given = {"benchmark": "own-data", "method": method, "budget": budget}
            config = resolve(given, choices=choices)
            assert notes(config) == [text for text in [config.method_settings.caution] if text]
            assert config.train.batch_size <= max(2, images // 4)
            assert config.backbone == ("digits-cnn" if side <= 48 else "resnet18")
            assert config.transform.size == (32 if side <= 48 else 224)


def test_few_images_are_seen_more_often_than_many():
    epochs = [choose(images=n, side=224, budget="standard").options["train"]["epochs"]
              for n in (100, 1500, 100_000)]  # fmt: skip
    assert epochs[0] > epochs[1] > epochs[2]


def test_own_images_have_a_short_budget_unless_another_is_given(tmp_path: Path):
    root = str(folder(tmp_path / "photos", side=200))
    config, _ = resolve_own_data({"root": root})
    assert (config.budget, config.train.epochs) == ("quick", 10)  # also for few images
    longer, _ = resolve_own_data({"root": root, "budget": "standard"})
    assert longer.train.epochs > 10 * config.train.epochs


def test_what_the_user_says_wins_and_is_not_explained(tmp_path: Path):
    given = {"root": str(folder(tmp_path / "photos", side=200)), "backbone": "alexnet"}
    config, choices = resolve_own_data(given)
    assert config.backbone == "alexnet"
    explained = choices.explain(config.tables())
    assert not any(line.startswith("--backbone") for line in explained)
    assert any(line.startswith("--weights imagenet: ") for line in explained)


def test_every_explained_option_is_a_flag_with_the_value_of_the_config(tmp_path: Path):
    config, choices = resolve_own_data({"root": str(folder(tmp_path / "photos", side=200))})
    flags = {
        line.split()[0]: line.split(":")[0].split()[1:] for line in choices.explain(config.tables())
    }
    assert flags["--transform.crop"] == ["0.8", "1.0"]
    assert flags["--train.batch-size"] == [str(config.train.batch_size)]
    again, _ = resolve_own_data(
        {"root": config.root, "transform": {"crop": [0.8, 1.0]}, "backbone": flags["--backbone"][0]}
    )
    assert again == config


@pytest.mark.parametrize("budget", BUDGETS)
@pytest.mark.parametrize("side", [40, 200])
def test_everything_that_results_depend_on_is_printed_with_a_reason(budget, side, tmp_path):
    given = {"root": str(folder(tmp_path / "photos", side=side)), "budget": budget}
    config, choices = resolve_own_data(given)
    lines = choices.explain(config.tables())
    said = {line.split()[0]: line.split(":")[0].split()[1] for line in lines}
    assert float(said["--peer.w"]) == config.method_settings.w
    assert int(said["--peer.k"]) == config.method_settings.k
    assert int(said["--pretrain.epochs"]) == config.pretrain.epochs
    assert int(said["--train.batch-size"]) == config.train.batch_size
    assert int(said["--pretrain.batch-size"]) == config.pretrain.batch_size
    for line in lines:
        assert len(line.partition(": ")[2]) > 10, line
        assert "as above" not in line
    given["peer"] = {"w": 7.0}
    config, choices = resolve_own_data(given)
    assert not any(line.startswith("--peer.w") for line in choices.explain(config.tables()))


def test_options_of_other_methods_are_not_announced(tmp_path: Path):
    root = str(folder(tmp_path / "photos"))
    for method, announced in {"erm": set(), "randaugment": {"--randaugment.k"}}.items():
        config, choices = resolve_own_data({"root": root, "method": method})
        flags = {line.split()[0] for line in choices.explain(config.tables())}
        assert {f for f in flags if f.startswith(("--peer", "--randaugment", "--erm"))} == announced


def test_the_reasons_are_the_comments_of_the_preset():
    comments = origins("own-photos", "quick")
    assert comments["peer.w"].startswith("study digits-readings: ")
    assert comments["peer.lam"] == "paper"  # shared by all budgets
    assert comments["backbone"].startswith("paper: ")
    assert origins("own-photos", "paper")["peer.k"] == "paper"
    assert reason("assumption: few images") == "few images"
    assert reason("paper") == "the paper's value"
    assert reason("paper: Office-Home") == "the paper's value (Office-Home)"


def test_domains_in_memory_are_chosen_for_in_the_same_way():
    config, _ = resolve_own_data({}, tiny_splits())
    assert (config.backbone, config.transform.size) == ("digits-cnn", 32)
    config, _ = resolve_own_data({"backbone": "own"}, tiny_splits())
    assert (config.transform.size, config.weights) == (None, "none")  # images as they are


def test_a_folder_is_all_a_person_types(tmp_path, monkeypatch, capsys):
    """`peerdg train photos --target sketches`, with the shortest of schedules."""
    monkeypatch.chdir(tmp_path)
    folder(Path("photos"))
    folder(Path("sketches"), side=33)
    arguments = ["train", "photos", "--target", "sketches", "--epochs", "1", "--method", "erm",
                 "--pretrain.epochs", "0"]  # fmt: skip
    assert run(arguments, debug=True) == 0
    shown = capsys.readouterr()
    assert "--backbone digits-cnn: 40 px images count as small" in shown.err
    assert "16 training images in 3 classes: cat, dog, owl." in shown.err
    assert "2 validation images (--own-data.validation-fraction" in shown.err
    assert "About " in shown.err and "0 + " not in shown.err
    assert "sketches" in shown.out and "report" in shown.out
    out = Path("runs/photos-erm-0")
    assert (out / "model/model.safetensors").is_file()
    whole = (out / "metrics.jsonl").read_text()
    (out / "done.json").unlink()
    shutil.rmtree(out / "checkpoint")
    (tmp_path / "elsewhere").mkdir()  # it can be resumed from anywhere
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert run(["resume", f"../{out}", "--quiet"], debug=True) == 0
    assert (tmp_path / out / "metrics.jsonl").read_text() == whole


def test_data_that_changed_since_the_start_is_named_file_by_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder(Path("photos"))
    arguments = ["train", "photos", "--epochs", "1", "--method", "erm", "--pretrain.epochs", "0",
                 "--out", "run", "--quiet"]  # fmt: skip
    assert run(arguments, debug=True) == 0
    Path("run/done.json").unlink()
    Image.new("RGB", (40, 40), "black").save("photos/cat/0.png")
    Path("photos/dog/1.png").unlink()
    assert run(["resume", "run"], debug=False) == 5
    told = capsys.readouterr().err
    assert "The data has changed" in told
    assert "cat/0.png" in told
    assert "dog/1.png" in told
    assert "--accept-new-data" in told
    assert run(["train", *arguments[1:], "--accept-new-data", "--overwrite"], debug=False) == 2
    assert "cannot be used together" in capsys.readouterr().err
    with pytest.warns(PeerdgWarning, match="starts over"):
        assert run(["resume", "run", "--accept-new-data", "--quiet"], debug=True) == 0
    assert run(["resume", "run", "--quiet"], debug=True) == 0
