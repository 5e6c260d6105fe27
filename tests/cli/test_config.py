"""`peerdg config`: what it prints is what the run would use."""

import tomllib
from pathlib import Path

import pytest

from peerdg.cli.main import run
from peerdg.run.config import resolve_own_data
from tests.run.test_choices import folder


def printed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert run(["config", *arguments], debug=True) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(("side", "preset"), [(40, "own-data"), (200, "own-photos")])
def test_explained_values_are_those_of_the_run_with_the_reasons_of_its_images(
    side, preset, tmp_path, capsys
):
    photos = str(folder(tmp_path / "photos", side=side))
    config, choices = resolve_own_data({"root": photos, "train": {"lr": 0.25}})
    text = printed([photos, "--explain", "--train.lr", "0.25"], capsys)
    assert tomllib.loads(text) == tomllib.loads(config.toml())
    assert f"# Preset '{preset}', budget 'quick'." in text
    assert f"  # {choices.reasons['backbone']}\n" in text
    assert "lr = 0.25  # given\n" in text


def test_the_value_that_won_is_explained_by_its_own_comment(capsys):
    section = printed(["pacs", "--explain"], capsys).partition("[peer]\n")[2]
    lines = dict(line.split(" = ", 1) for line in section.partition("\n\n")[0].splitlines())
    assert lines["w"].startswith("0.1  # ") and "paper" not in lines["w"]
    assert lines["lam"] == "0.005  # paper"


def test_options_of_a_method_are_listed_with_their_choices(capsys):
    assert run(["methods", "peer"], debug=True) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "frozen" in shown and "--explain" in shown


def test_a_file_with_a_few_options_leaves_the_rest_to_the_images(tmp_path, capsys):
    """A learning rate in a file must not bring the network for digits to photos."""
    photos = str(folder(tmp_path / "photos", side=200))
    few = tmp_path / "few.toml"
    few.write_text("[train]\nlr = 0.25\n")
    config = tomllib.loads(printed([photos, "--config", str(few)], capsys))
    assert (config["backbone"], config["train"]["lr"]) == ("resnet18", 0.25)
    expected, _ = resolve_own_data({"root": photos, "train": {"lr": 0.25}})
    assert config == tomllib.loads(expected.toml())
    assert "'own-photos'" in printed([photos, "-c", str(few), "--explain"], capsys)


def test_a_complete_file_is_taken_as_it_is_also_for_other_images(tmp_path, capsys):
    small = str(folder(tmp_path / "small", side=40))
    photos = str(folder(tmp_path / "photos", side=200))
    whole = tmp_path / "whole.toml"
    whole.write_text(printed([small, "--seed", "3"], capsys))
    again = tomllib.loads(printed([photos, "--config", str(whole)], capsys))
    assert again.pop("root") == str(Path(photos).resolve())
    before = tomllib.loads(whole.read_text())
    del before["root"]
    assert again == before


@pytest.mark.parametrize(
    "content", ["root = 5", "targets = 5", "targets = [5]", "own-data = 5", "budget = 'qick'"]
)
def test_a_file_with_values_of_a_wrong_type_is_refused(content, tmp_path, capsys):
    photos = str(folder(tmp_path / "photos", side=200))
    few = tmp_path / "few.toml"
    few.write_text(f'benchmark = "own-data"\n{content}\n')
    arguments = ["config", "--config", str(few)]
    assert run(arguments if "root" in content else [*arguments, photos], debug=False) == 2
    assert capsys.readouterr().err.startswith("Error: ")


@pytest.mark.parametrize(
    "flags", [["--l2d.kernels", "3,7"], ["--l2d.kernels=3", "--l2d.kernels", "7"]], ids=str
)
def test_a_list_of_whole_numbers_is_given_with_commas_or_flag_by_flag(flags, capsys):
    text = printed(["digits-mini", "--method", "l2d", *flags], capsys)
    assert tomllib.loads(text)["l2d"]["kernels"] == [3, 7]
