"""`peerdg config`: what it prints is what the run would use."""

import tomllib
from pathlib import Path

import pytest

from peerdg.cli.main import run
from peerdg.run.config import resolve_own_data
from peerdg.run.presets import preset_files
from tests.run.test_choices import folder


def printed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert run(["config", *arguments], debug=True) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(("side", "preset"), [(40, "own-data"), (200, "own-photos")])
def test_the_explained_preset_is_the_one_the_images_choose(side, preset, tmp_path, capsys):
    photos = str(folder(tmp_path / "photos", side=side))
    config, choices = resolve_own_data({"root": photos, "budget": "quick"})
    text = printed([photos, "--explain", "--budget", "quick"], capsys)
    assert text.endswith(preset_files(preset)[preset])
    assert f"# Preset '{preset}', budget 'quick'." in text
    explained = choices.explain(config.tables())
    assert any(line.startswith("--backbone ") for line in explained)
    for line in explained:
        assert f"#   {line}\n" in text


def test_a_named_data_set_is_explained_by_its_own_preset(capsys):
    text = printed(["pacs", "--explain"], capsys)
    assert text.startswith("# Preset 'pacs', budget 'standard'.\n")
    for file in ("base", "photos", "pacs"):
        assert preset_files("pacs")[file] in text


def test_a_file_with_a_few_options_leaves_the_rest_to_the_images(tmp_path, capsys):
    """A learning rate in a file must not bring the network for digits to photos."""
    photos = str(folder(tmp_path / "photos", side=200))
    few = tmp_path / "few.toml"
    few.write_text("[train]\nlr = 0.25\n")
    config = tomllib.loads(printed([photos, "--config", str(few)], capsys))
    assert (config["backbone"], config["train"]["lr"]) == ("resnet18", 0.25)
    expected, _ = resolve_own_data({"root": photos, "train": {"lr": 0.25}})
    assert config == tomllib.loads(expected.toml())
    assert "own-photos.toml" in printed([photos, "-c", str(few), "--explain"], capsys)


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
