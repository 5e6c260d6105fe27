"""Several runs into one model: by the mean of weights or outputs, checked and refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import peerdg
from peerdg.cli.main import run as command
from peerdg.errors import ConfigError, OutputError, PeerdgError, PeerdgWarning
from peerdg.files import sha256
from peerdg.models.backbones import build_classifier
from peerdg.models.classifier import Classifier
from peerdg.models.stored import checksum, load_stored, save_model
from peerdg.train.source import Source
from tests.cli.stored_models import CLASSES, save_photos
from tests.conftest import tiny_classifier, tiny_splits
from tests.methods.tiny import TINY

OPTIONS: dict[str, Any] = {
    "method": "erm",
    "pretrain": {"epochs": 12, "batch_size": 8, "lr": 0.05},
    "train": {"epochs": 2, "batch_size": 8, "lr": 0.02},
    "crafted": "off",
}
IMAGES = torch.randint(
    0, 256, (7, 3, 12, 12), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
)


def network(*, batch_norm: bool = True) -> Classifier:
    return tiny_classifier(batch_norm=batch_norm)


def fit(out: Path, *, batch_norm: bool = True, **options: Any) -> Path:
    model = network(batch_norm=batch_norm)
    peerdg.fit(tiny_splits(), out=out, model=model, **OPTIONS | options)
    return out


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that share their start, with and without batch normalization, and one that does not."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("runs")
        patch.setenv("PEERDG_CACHE", str(folder / "cache"))
        for seed in range(3):
            fit(folder / f"bn-{seed}", train_seed=seed)
            fit(folder / f"plain-{seed}", batch_norm=False, train_seed=seed)
        fit(folder / "other", seed=1)
        fit(folder / "trained-0", batch_statistics="trained", train_seed=0)
        fit(folder / "trained-1", batch_statistics="trained", train_seed=1)
    return folder


def runs(made: Path, kind: str = "bn", count: int = 3) -> list[Path]:
    return [made / f"{kind}-{number}" for number in range(count)]


def combined(folders: list[Path], out: Path, *, batch_norm: bool = True, **options: Any):
    options.setdefault("data", tiny_splits())
    return peerdg.combine(folders, out=out, network=network(batch_norm=batch_norm), **options)


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model" / "model.safetensors")


def about(folder: Path) -> dict[str, Any]:
    description: dict[str, Any] = json.loads((folder / "model.json").read_text())
    return description


def mean_of(folders: list[Path]) -> dict[str, torch.Tensor]:
    several = [tensors(folder) for folder in folders]
    return {
        name: torch.stack([each[name].double() for each in several]).mean(0)
        for name in several[0]
        if several[0][name].is_floating_point()
    }


def test_uniform_is_the_mean_of_all_weights(made, tmp_path):
    model = combined(runs(made, "plain"), tmp_path / "u", batch_norm=False)
    for name, expected in mean_of(runs(made, "plain")).items():
        torch.testing.assert_close(
            model.classifier.state_dict()[name].double(), expected, rtol=0, atol=1e-6
        )


def test_batch_statistics_of_a_mean_are_those_of_the_clean_source_images(made, tmp_path):
    model = combined(runs(made), tmp_path / "u").classifier
    for name, expected in mean_of(runs(made)).items():
        if "running" not in name:
            torch.testing.assert_close(
                model.state_dict()[name].double(), expected, atol=1e-6, rtol=0
            )
    # One layer sees the images themselves: its statistics in closed form.
    clean = Source(tiny_splits().train).clean
    outputs = [model.encoder.conv(model.prepare(images)) for images in clean]
    sizes = torch.tensor([len(each) for each in outputs], dtype=torch.float32)
    means = torch.stack([each.mean((0, 2, 3)) for each in outputs])
    variances = torch.stack([each.var((0, 2, 3)) for each in outputs])
    weights = (sizes / sizes.sum()).unsqueeze(1)
    torch.testing.assert_close(model.encoder.norm.running_mean, (weights * means).sum(0))
    torch.testing.assert_close(model.encoder.norm.running_var, (weights * variances).sum(0))
    assert about(tmp_path / "u")["training"]["batch_statistics"] == "clean"


def test_without_the_data_the_statistics_are_averaged_and_that_is_said(made, tmp_path):
    with pytest.warns(PeerdgWarning) as warned:
        model = combined(runs(made), tmp_path / "u", data=None)
    texts = " ".join(str(each.message) for each in warned)
    assert "not recomputed" in texts
    assert "not evaluated" in texts
    name = "encoder.norm.running_mean"
    torch.testing.assert_close(
        model.classifier.state_dict()[name].double(), mean_of(runs(made))[name], atol=1e-6, rtol=0
    )
    training = about(tmp_path / "u")["training"]
    assert training["batch_statistics"] == "mean of the members'"
    assert "accuracy" not in training


def test_statistics_that_training_left_are_averaged_like_weights(made, tmp_path):
    model = combined(runs(made, "trained", 2), tmp_path / "u")
    name = "encoder.norm.running_var"
    torch.testing.assert_close(
        model.classifier.state_dict()[name].double(),
        mean_of(runs(made, "trained", 2))[name],
        atol=1e-6,
        rtol=0,
    )
    assert about(tmp_path / "u")["training"]["batch_statistics"] == "trained"


def test_frozen_statistics_are_kept_like_weights_and_without_a_warning(tmp_path, recwarn):
    for seed in range(2):
        fit(tmp_path / f"frozen-{seed}", train_seed=seed, method="advst", advst=TINY["advst"])
    model = combined(runs(tmp_path, "frozen", 2), tmp_path / "u")
    name = "encoder.norm.running_var"
    expected = mean_of(runs(tmp_path, "frozen", 2))[name]
    found = model.classifier.state_dict()[name].double()
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    assert about(tmp_path / "u")["training"]["batch_statistics"] == "frozen"
    assert not [w for w in recwarn if "batch statistics" in str(w.message)]


@pytest.mark.parametrize("outputs", ["probabilities", "logits"])
def test_an_ensemble_is_the_mean_of_the_outputs(outputs, made, tmp_path):
    model = combined(runs(made), tmp_path / "e", rule="ensemble", outputs=outputs)
    members = [peerdg.load_model(path, network=network()).classifier for path in runs(made)]
    logits = torch.stack([member(IMAGES) for member in members])
    expected = logits.softmax(2).mean(0) if outputs == "probabilities" else logits.mean(0)
    found = model.classifier(IMAGES)
    torch.testing.assert_close(found.softmax(1) if outputs == "probabilities" else found, expected)
    assert about(tmp_path / "e")["combined"]["outputs"] == outputs


def greedy_by_hand(folders: list[Path]) -> tuple[list[str], dict[str, torch.Tensor]]:
    """Ramé et al.: best first, each kept if the mean's validation accuracy does not fall."""
    validation = tiny_splits().validation

    def accuracy(weights: dict[str, torch.Tensor]) -> float:
        model = network(batch_norm=False).eval()
        model.load_state_dict({name: value.float() for name, value in weights.items()})
        return float((model(validation.images).argmax(1) == validation.labels).float().mean())

    own = {folder: accuracy(tensors(folder)) for folder in folders}
    ranked = sorted(folders, key=lambda folder: -own[folder])
    chosen, best = [ranked[0]], own[ranked[0]]
    for folder in ranked[1:]:
        if accuracy(mean_of([*chosen, folder])) >= best:
            chosen.append(folder)
            best = accuracy(mean_of(chosen))
    return [folder.name for folder in chosen], mean_of(chosen)


def weakened(folder: Path, out: Path, *, head: float) -> Path:
    """A copy of a run whose head is scaled, which spoils a mean without it being broken itself."""
    shutil.copytree(folder, out)
    weights = tensors(out)
    weights["head.weight"] *= head
    save_file(weights, out / "model/model.safetensors")
    values = about(out / "model")
    values["weights_sha256"] = sha256(out / "model/model.safetensors")
    (out / "model/model.json").write_text(json.dumps({**values, "sha256": checksum(values)}))
    return out


def test_greedy_keeps_what_does_not_lower_the_accuracy_on_validation_images(made, tmp_path):
    spoiler = weakened(made / "plain-0", tmp_path / "spoiler", head=-50.0)
    folders = [spoiler, *runs(made, "plain")]
    names, expected = greedy_by_hand(folders)
    assert 1 <= len(names) < 4 and "spoiler" not in names
    model = combined(folders, tmp_path / "g", rule="greedy", batch_norm=False)
    members = about(tmp_path / "g")["combined"]["members"]
    assert {m["name"] for m in members if m["used"]} == set(names)
    assert all(m["validation"] is not None for m in members)
    for name, value in expected.items():
        torch.testing.assert_close(
            model.classifier.state_dict()[name].double(), value, rtol=0, atol=1e-6
        )
    assert "chosen by their accuracy on the source's validation" in (
        tmp_path / "g/MODEL_CARD.md"
    ).read_text().replace("\n", " ")


def test_a_tie_is_no_fall(made, tmp_path):
    """Runs that answer alike are all taken, in the order in which they were given."""
    doubled = weakened(made / "plain-0", tmp_path / "doubled", head=1.0001)
    combined([made / "plain-0", doubled], tmp_path / "g", rule="greedy", batch_norm=False)
    assert all(m["used"] for m in about(tmp_path / "g")["combined"]["members"])


def test_a_greedy_choice_needs_the_validation_images_of_the_runs(made, tmp_path):
    splits = tiny_splits()
    targets = dict(splits.targets)
    for data, match in (
        (None, "needs the validation images"),
        (peerdg.Splits(splits.train, None, targets), "no validation images"),
        (peerdg.Splits(targets["one"], splits.validation, targets), "have changed"),
    ):
        with pytest.raises(ConfigError, match=match):
            combined(runs(made), tmp_path / "g", rule="greedy", data=data)
    assert not (tmp_path / "g").exists()


def test_the_accuracies_are_those_of_the_combined_model(made, tmp_path):
    model = combined(runs(made), tmp_path / "e", rule="ensemble")
    stored = about(tmp_path / "e")["training"]["accuracy"]
    splits = tiny_splits()
    for name, domain in {"validation": splits.validation, **splits.targets}.items():
        assert stored[name] == {"accuracy": model.evaluate(domain)["accuracy"], "n": len(domain)}


def test_members_are_named_without_their_paths_and_may_be_model_folders(made, tmp_path):
    combined([path / "model" for path in runs(made)], tmp_path / "e", rule="ensemble")
    text = (tmp_path / "e/model.json").read_text() + (tmp_path / "e/MODEL_CARD.md").read_text()
    assert str(made) not in text
    members = about(tmp_path / "e")["combined"]["members"]
    assert [m["name"] for m in members] == ["bn-0", "bn-1", "bn-2"]
    assert [(m["seed"], m["train_seed"]) for m in members] == [(0, 0), (0, 1), (0, 2)]
    assert all(f"| bn-{n} | erm | 0/{n} |" in text.replace("\\", "") for n in range(3))


def test_runs_with_another_start_get_a_warning_for_means_only(made, tmp_path):
    folders = [made / "bn-0", made / "other"]
    with pytest.warns(PeerdgWarning, match="differing: seed") as warned:
        combined(folders, tmp_path / "u")
    assert sum("same weights" in str(each.message) for each in warned) == 1
    combined(folders, tmp_path / "e", rule="ensemble")  # a warning would be an error


def test_a_network_with_other_initial_weights_is_another_start(made, tmp_path):
    model = tiny_classifier(seed=5, batch_norm=True)
    peerdg.fit(tiny_splits(), out=tmp_path / "five", model=model, **OPTIONS)
    with pytest.warns(PeerdgWarning, match="network weights"):
        combined([made / "bn-0", tmp_path / "five"], tmp_path / "u")
    with pytest.raises(ConfigError, match="batch_statistics: clean and trained"):
        combined([made / "bn-0", made / "trained-1"], tmp_path / "v")


def test_unfinished_runs_are_taken_and_named(made, tmp_path):
    half = Path(shutil.copytree(made / "bn-1", tmp_path / "half"))
    values = about(half / "model")
    values["progress"] = {"complete": False, "epoch": 1, "epochs": 4,
                          "pretrain_epoch": 1, "pretrain_epochs": 1}  # fmt: skip
    (half / "model/model.json").write_text(json.dumps({**values, "sha256": checksum(values)}))
    with pytest.warns(PeerdgWarning, match="trained for 1 of 4 epochs"):
        combined([made / "bn-0", half], tmp_path / "e", rule="ensemble")
    assert "trained for 1 of 4 epochs" in (tmp_path / "e/MODEL_CARD.md").read_text()


# Folders that need no training: networks that can be built by name.


def save(folder: Path, seed: int = 0, *, layer: bool = False, **options: Any) -> Path:
    settings = {"backbone": "digits-cnn-half", "image_size": 32, **options}
    about = {name: settings.pop(name, default) for name, default in
             {"classes": CLASSES, "mean": (0.5,) * 3}.items()}  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = build_classifier(settings["backbone"], **about, std=(0.2,) * 3)
        if layer:
            width = model.feature_dim
            added = {"kind": "gaussian-bottleneck", "place": "features", "inputs": width}
            model = model.with_layers([{**added, "outputs": 8, "noise": 1.0}])
    save_model(folder, model, **settings)
    return folder


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ensemble of two stored models."""
    folder = tmp_path_factory.mktemp("stored")
    with pytest.warns(PeerdgWarning, match="not evaluated"):
        peerdg.combine(
            [save(folder / "a", 0), save(folder / "b", 1)], out=folder / "e", rule="ensemble"
        )
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_photos(tmp_path_factory.mktemp("photos") / "photos", per_class=1)


def refused(folders: list[Path], out: Path, match: str, kind: type[PeerdgError] = ConfigError):
    with pytest.raises(kind, match=match):
        peerdg.combine(folders, out=out)
    assert not out.exists()


def test_too_few_or_equal_models_are_refused(tmp_path):
    one = save(tmp_path / "a")
    copied = Path(shutil.copytree(one, tmp_path / "copied"))
    refused([], tmp_path / "u", "At least two runs are needed, got 0")
    refused([one], tmp_path / "u", "got 1")
    refused([one, one], tmp_path / "u", "same model")
    refused([one, copied], tmp_path / "u", "same model")


def test_models_of_another_kind_are_refused(tmp_path):
    for number, (other, match) in enumerate(
        (
            ({"classes": (*CLASSES, "cow")}, "classes.*cow"),
            ({"classes": ("dog", "cat", "horse")}, "classes"),
            ({"backbone": "digits-cnn"}, "backbone"),
            ({"mean": (0.4,) * 3}, "mean"),
            ({"stored_size": 40}, "stored_size"),
            ({"layer": True}, "added_layers"),
        )
    ):
        folders = [save(tmp_path / f"a{number}"), save(tmp_path / f"b{number}", 1, **other)]
        refused(folders, tmp_path / "u", match)


def test_what_is_there_is_not_replaced(tmp_path):
    folders = [save(tmp_path / "a"), save(tmp_path / "b", 1)]
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/mine").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "taken", tmp_path / "file", folders[0]):
        with pytest.raises(OutputError, match="exists"):
            peerdg.combine(folders, out=out)
    assert (tmp_path / "taken/mine").read_text() == "mine"


def test_ensembles_as_members_and_unknown_rules_are_refused(stored, tmp_path):
    refused([stored / "e", stored / "a"], tmp_path / "u", "is an ensemble")
    folders = [stored / "a", stored / "b"]
    for wrong in (
        {"rule": "vote"},
        {"rule": "ensemble", "outputs": "votes"},
        {"outputs": "logits"},
    ):
        with pytest.raises(ConfigError):
            peerdg.combine(folders, out=tmp_path / "u", **wrong)
    assert not (tmp_path / "u").exists()


def test_the_folder_needs_the_runs_no_more(stored, tmp_path, photos, capsys):
    alone = Path(shutil.copytree(stored / "e", tmp_path / "alone"))
    loaded, _ = load_stored(alone)
    images = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    members = [load_stored(stored / name)[0](images).softmax(1) for name in "ab"]
    torch.testing.assert_close(loaded(images).softmax(1), torch.stack(members).mean(0))
    assert command(["predict", str(alone), str(photos)], debug=False) == 0
    assert command(["evaluate", str(alone), str(photos)], debug=False) == 0
    assert "accuracy" in capsys.readouterr().out


def test_it_is_exported_and_answers_the_same(stored, tmp_path):
    done = peerdg.load_model(stored / "e").export(tmp_path / "out", format="onnx")
    assert done.difference < 1e-4
    text = json.loads((tmp_path / "out/about.json").read_text())
    assert [m["name"] for m in text["combined"]["members"]] == ["a", "b"]


def test_members_with_added_layers_are_stored_with_them(tmp_path):
    folders = [save(tmp_path / "a", 0, layer=True), save(tmp_path / "b", 1, layer=True)]
    with pytest.warns(PeerdgWarning):
        model = peerdg.combine(folders, out=tmp_path / "e", rule="ensemble", outputs="logits")
        mean = peerdg.combine(folders, out=tmp_path / "u")
    images = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    several = [load_stored(folder)[0] for folder in folders]
    expected = torch.stack([each(images) for each in several]).mean(0)
    torch.testing.assert_close(model.classifier(images), expected)
    assert mean.classifier.added == several[0].added


def test_the_command_combines_runs_and_prints_accuracies(tmp_path, capsys):
    """On a folder of images, which the command finds by itself."""
    photos = save_photos(tmp_path / "photos", per_class=4)
    options = "--method erm --backbone digits-cnn-half --weights none --transform.size 32 "
    options += "--epochs 1 --train.batch-size 4 --pretrain.epochs 0 --crafted off -q"
    folders = [str(tmp_path / f"r{number}") for number in range(2)]
    for number, out in enumerate(folders):
        train = ["train", str(photos), "--out", out, "--train-seed", str(number)]
        assert command([*train, *options.split()], debug=False) == 0
    capsys.readouterr()
    for rule in ("uniform", "greedy", "ensemble"):
        out = tmp_path / rule
        assert command(["combine", *folders, "--rule", rule, "-o", str(out)], debug=False) == 0
        assert "validation" in capsys.readouterr().out
        assert about(out)["training"]["accuracy"]["validation"]["n"] >= 1
    refused = {2: ([folders[0]], tmp_path / "x"), 4: (folders, tmp_path / "uniform")}
    for code, (given, out) in refused.items():
        assert command(["combine", *given, "-o", str(out)], debug=False) == code
    wrong = ["combine", *folders, "--rule", "vote", "-o", str(tmp_path / "x")]
    assert command(wrong, debug=False) == 2
