"""Attached averages do not affect a run or each other."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import peerdg
from peerdg.averages.average_options import KINDS, AverageSettings, make_average
from peerdg.averages.moving import EMA
from peerdg.averages.snapshots import Snapshots
from peerdg.data.splits import Splits
from peerdg.errors import ConfigError, PeerdgWarning
from peerdg.methods.base import Batch, Method
from peerdg.methods.erm import ERM
from peerdg.options import merge
from peerdg.run.config import notes, resolve
from peerdg.run.folder import RunFolder
from tests.conftest import tiny_classifier, tiny_domain, tiny_splits

OPTIONS: dict[str, Any] = {
    "pretrain": {"epochs": 1, "batch_size": 8},
    "train": {"epochs": 4, "batch_size": 8, "lr": 0.01},
    "randaugment": {"k": 2},
    "evaluate_every": 2,
    "crafted": "off",
}
SHORT = {"sma": {"t0": 3}, "swad": {"every": 2}}  # options of averages, for a few steps


def train(out: Path, *kinds: str, **average: Any) -> list[dict[str, Any]]:
    average = {"kind": list(kinds), **merge(*(SHORT.get(kind, {}) for kind in kinds)), **average}
    peerdg.fit(
        tiny_splits(),
        method="randaugment",
        model=tiny_classifier(batch_norm=True),
        out=out,
        progress=False,
        average=average,
        **OPTIONS,
    )
    return RunFolder(out).metrics.read()


def of_epochs(records: list[dict[str, Any]]) -> list[float]:
    return [record["loss"] for record in records if record["kind"] == "epoch"]


def of_model(records: list[dict[str, Any]], model: str) -> list[dict[str, Any]]:
    return [record for record in records if record.get("model") == model]


def test_attached_together_they_equal_each_alone_bit_for_bit(tmp_path: Path):
    together = train(tmp_path / "all", *KINDS)
    deployed = load_file(tmp_path / "all/model/model.safetensors")
    for kind in KINDS:
        alone = train(tmp_path / kind, kind)
        assert of_model(alone, kind) == of_model(together, kind)
        assert of_model(alone, "model") == of_model(together, "model")
        assert f'"deployed": "{kind}"' in (tmp_path / kind / "done.json").read_text()
        own = load_file(tmp_path / kind / "model/model.safetensors")
        same = all(torch.equal(value, deployed[name]) for name, value in own.items())
        assert same == (kind == "snapshots")  # the first is deployed
    unwatched = train(tmp_path / "none")
    assert of_model(unwatched, "model") == of_model(together, "model")
    assert of_epochs(unwatched) == of_epochs(together)
    assert len({tuple(r["loss"] for r in of_model(together, kind)) for kind in KINDS}) == len(KINDS)


@pytest.mark.parametrize(
    ("kind", "message", "hint"),
    [
        (["ema,ema"], "listed twice", ""),
        (["emma"], "Unknown average 'emma'", "ema"),
        ([""], "Unknown average ''", ""),
    ],
)
def test_wrong_averages_are_refused_with_the_nearest_name(kind: list[str], message: str, hint: str):
    with pytest.raises(ConfigError) as caught:
        resolve({"average": {"kind": kind}})
    assert message in caught.value.message
    assert hint in (caught.value.hint or "")


def test_several_kinds_may_stand_in_one_word():
    assert resolve({"average": {"kind": "snapshots, ema"}}).average.kind == ("snapshots", "ema")


def test_swad_without_validation_images_is_refused_before_training(tmp_path: Path):
    splits = Splits(train=tiny_domain(), validation=None, targets={"one": tiny_domain("one")})
    with pytest.raises(ConfigError, match="SWAD needs validation images"):
        peerdg.fit(
            splits,
            method="swad",
            model=tiny_classifier(),
            out=tmp_path / "run",
            progress=False,
            **OPTIONS,
        )


def learn(method: Method) -> None:
    """Take one step without updating the averages."""
    optimizer = torch.optim.SGD([p for p in method.parameters() if p.requires_grad], lr=0.1)
    domain = tiny_domain(n=8)
    method.loss(Batch(domain.images, domain.labels))["loss"].backward()
    optimizer.step()


def test_an_average_without_updates_warns_in_a_custom_loop():
    method = ERM(tiny_classifier())
    method.attach_averages({"ema": EMA(method.trained, decay=0.9)})
    learn(method)
    with pytest.warns(PeerdgWarning, match="nothing was averaged"):
        assert method.deployed is method.evaluated_networks["ema"]
    method.update_averages()
    assert method.deployed is method.evaluated_networks["ema"]


def test_an_attached_average_needs_a_free_name():
    peer = peerdg.PEER(tiny_classifier())
    for name in ("task", "proxy"):
        with pytest.raises(ConfigError, match=f"named '{name}'"):
            peer.attach_averages({name: EMA(peer.trained)})
    peer.attach_averages({"ema": EMA(peer.trained)})
    with pytest.raises(ConfigError, match="named 'ema'"):
        peer.attach_averages({"other": EMA(peer.trained), "ema": EMA(peer.trained)})
    assert list(peer.evaluated_networks) == ["proxy", "task", "ema"]
    assert peer.deployed is peer.task


def test_an_average_that_needs_epoch_starts_cannot_be_attached():
    """The loop of attached averages has no epoch starts."""
    method = ERM(tiny_classifier())
    with pytest.raises(ConfigError, match="include_init"):
        method.attach_averages({"initial": Snapshots(method.trained, include_init=True)})


@pytest.mark.parametrize(
    ("epochs", "steps", "t0", "every"), [(1000, 500, 100, 100), (20, 12, 24, 12), (3, 2, 0, 2)]
)
def test_short_runs_have_a_shorter_start_and_more_validations(
    epochs: int, steps: int, t0: int, every: int
):
    def make(kind: str, **options: Any) -> Any:
        return make_average(
            kind,
            tiny_classifier(),
            AverageSettings(**options),
            k=1,
            epochs=epochs,
            steps=steps,
            validation_loss=lambda model: 0.0,
        )

    assert make("sma").start == t0
    assert make("swad").every == every
    assert make("sma", t0=7).start == 7
    assert make("swad", every=300).every == 300


PEER: dict[str, Any] = {
    **{key: value for key, value in OPTIONS.items() if key != "randaugment"},
    "peer": {"k": 2, "w": 0.1, "head_dim": 4, "head_hidden": 4},
}


def fit(out: Path, *, batch_norm: bool = False, **options: Any) -> list[dict[str, Any]]:
    model = tiny_classifier(batch_norm=batch_norm)
    peerdg.fit(tiny_splits(), model=model, out=out, progress=False, **options)
    return RunFolder(out).metrics.read()


def test_the_end_of_training_closes_swads_last_segment(tmp_path: Path):
    """The average includes the last steps even in a short run."""
    average = {"kind": ["swad"], "every": 1000}
    records = fit(tmp_path / "run", method="randaugment", **{**OPTIONS, "average": average})
    losses = [[r["loss"] for r in of_model(records, "swad") if r["epoch"] == n] for n in (2, 4)]
    assert losses[0] != losses[1]
    assert losses[1] != [r["loss"] for r in of_model(records, "model") if r["epoch"] == 4]


def test_attached_averages_use_the_network_before_its_reset(tmp_path: Path):
    """A mean over epochs has the networks before their reset."""
    peer = {**PEER["peer"], "k": 1, "reset_proxy": True}
    average = {"kind": ["snapshots", "swa"]}
    options = {**PEER, "peer": peer, "average": average, "evaluate_every": 1}
    records = fit(tmp_path / "run", method="peer", **options)
    losses = {n: [r["loss"] for r in of_model(records, n)] for n in ("task", "swa", "proxy")}
    assert losses["swa"] == losses["task"]  # both are the mean over all epochs
    assert losses["proxy"] == losses["task"]  # to which the proxy was reset
    assert [r["swa"] for r in records if "swa" in r] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "p-ens", "randaugment": {"k": 10}}, "no snapshot is averaged"),
        ({"method": "p-ens", "randaugment": {"k": 2}, "average": {"k": 10}}, "Lower --average.k"),
        ({"method": "p-ens", "randaugment": {"k": 2}}, "left out of the deployed average"),
        ({"method": "peer", "peer": {"k": 10}}, "Lower --peer.k"),
        ({"method": "peer", "peer": {"k": 1}, "average": {"k": 10}}, "no snapshot is averaged"),
    ],
)
def test_a_deployed_average_without_the_last_epochs_is_announced(
    options: dict[str, Any], words: str
):
    assert any(words in note for note in notes(resolve({**options, "train": {"epochs": 3}})))


@pytest.mark.parametrize(
    "options",
    [
        {"method": "peer", "peer": {"k": 2}, "average": {"kind": ["ema"]}},
        {"method": "ema", "randaugment": {"k": 10}},
        {"method": "swa", "randaugment": {"k": 10}},
        {"method": "randaugment", "randaugment": {"k": 10}},
        {"method": "peer", "peer": {"k": 5, "include_init": True}},
    ],
)
def test_nothing_is_announced_where_every_epoch_counts(options: dict[str, Any]):
    assert notes(resolve({**options, "train": {"epochs": 3}})) == []


def test_options_of_snapshots_are_refused_with_another_task_model():
    options = {"include_init": True, "reset_proxy": True, "average": False, "bn": "copy"}
    for name, value in options.items():
        peer = {"method": "peer", "peer": {name: value}}
        with pytest.raises(ConfigError, match=name):
            resolve({**peer, "average": {"kind": ["ema"]}})
        resolve({**peer, "average": {"kind": ["swa"]}})
        resolve({**peer, "average": {"kind": ["snapshots", "ema"]}})
    with pytest.raises(ConfigError, match="used together"):
        resolve({"method": "peer", "peer": {"include_init": True, "reset_proxy": True}})


def test_no_averaging_and_a_window_to_average_exclude_each_other():
    with pytest.raises(ConfigError, match="disables it"):
        resolve({"method": "peer-no-average", "average": {"last": 3}})


OTHER_VALUES = {
    "k": 7, "start": 1, "last": 3, "swa_start": 0.5, "decay": 0.9, "t0": 3,
    "every": 2, "converge": 2, "tolerance": 4, "ratio": 0.1,
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [f.name for f in fields(AverageSettings) if f.name not in ("kind", "also")]
)
def test_options_of_unused_averages_are_refused(name: str):
    """Each option is accepted by one average and refused by all others."""
    option = {name: OTHER_VALUES[name]}
    (owner,) = (kind for kind, names in KINDS.items() if name in names)
    for kind in KINDS:
        options = {"method": "erm", "average": {"kind": [kind], **option}}
        if kind == owner:
            assert getattr(resolve(options).average, name) == OTHER_VALUES[name]
            continue
        with pytest.raises(ConfigError, match=f"average.{name} .* '{owner}'"):
            resolve(options)
    with pytest.raises(ConfigError, match=f"average.{name}"):
        resolve({"method": "erm", "average": option})
    resolve({"method": "erm", "average": {"kind": list(KINDS), **option}})


def test_peers_own_snapshots_take_their_options_and_windows_their_period():
    assert resolve({"method": "peer", "average": {"last": 3, "k": 7}}).average.last == 3
    beside_ema = {"kind": ["ema"], "also": ["last-2"], "k": 7}
    assert resolve({"method": "ema", "average": beside_ema}).average.k == 7


def test_another_method_forgets_the_recipe_of_an_earlier_layer():
    config = resolve({"method": "ema"}, {"method": "peer"})
    assert (config.method, config.average.kind, config.recipe) == ("peer", (), None)
    config = resolve({"method": "peer"}, {"method": "ema"})
    assert (config.method, config.average.kind, config.recipe) == ("randaugment", ("ema",), "ema")


def test_peers_task_model_is_the_same_called_swa_or_snapshots_of_every_epoch(tmp_path: Path):
    """Also in its batch statistics, which guide the proxy."""
    kinds: dict[str, dict[str, Any]] = {
        "swa": {"kind": ["swa"]},
        "snapshots": {"kind": ["snapshots"], "k": 1},
    }
    swa, snapshots = (
        fit(tmp_path / name, method="peer", batch_norm=True, average=average, **PEER)
        for name, average in kinds.items()
    )
    assert of_model(swa, "proxy") == of_model(snapshots, "proxy")
    assert of_model(swa, "task") == of_model(snapshots, "task")


@pytest.mark.parametrize(("name", "option"), [("last-2", {"last": 2}), ("start-1", {"start": 1})])
def test_a_window_is_the_same_with_and_without_other_averages(
    tmp_path: Path, name: str, option: dict[str, int]
):
    beside = train(tmp_path / "beside", "snapshots", k=1, also=["last-2,start-1"])
    alone = train(tmp_path / "alone", "snapshots", k=1, **option)
    whole = train(tmp_path / "whole", "snapshots", k=1)

    def losses(records: list[dict[str, Any]], model: str) -> list[float]:
        return [record["loss"] for record in of_model(records, model)]

    assert losses(beside, name) == losses(alone, "snapshots")
    assert losses(beside, "snapshots") == losses(whole, "snapshots") != losses(beside, name)


def test_an_invalid_window_is_refused():
    for name in ("last-0", "last", "first-3", "last-03", "start--1", ""):
        with pytest.raises(ConfigError, match="Unknown snapshot window"):
            AverageSettings(kind=("snapshots",), also=(name,))


def test_windows_without_a_deployed_average_are_refused():
    with pytest.raises(ConfigError, match="no average is deployed") as caught:
        resolve({"method": "randaugment", "average": {"also": ["last-3"]}})
    assert caught.value.hint == "Add --average snapshots."
