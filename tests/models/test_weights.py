"""Files are made from torchvision's and timm's own networks, as these write them."""

import hashlib
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from peerdg._vision import models
from peerdg.errors import ConfigError, DamagedError, DataError, PeerdgWarning
from peerdg.models.names import BACKBONES
from peerdg.models.stored import save_model
from peerdg.models.weights import _foreign_places, download, imagenet_file, initialize
from peerdg.run.config import resolve
from peerdg.run.prepare import build_model
from tests.conftest import import_timm
from tests.models.files import build

SMALL = "squeezenet1_1"


def same(model: torch.nn.Module, tensors: dict[str, torch.Tensor]) -> bool:
    own = model.state_dict()
    return all(torch.equal(own[name], value) for name, value in tensors.items())


def written(path: Path, tensors: dict[str, torch.Tensor]) -> str:
    if path.suffix == ".safetensors":
        save_file({name: value.contiguous() for name, value in tensors.items()}, path)
    else:
        torch.save(tensors, path)
    return str(path)


@pytest.fixture(scope="module")
def squeezenet() -> dict[str, torch.Tensor]:
    return models.squeezenet1_1().state_dict()


@pytest.fixture(scope="module")
def resnet() -> dict[str, torch.Tensor]:
    return models.resnet18().state_dict()


@pytest.mark.parametrize("suffix", ["pth", "pt", "safetensors"])
def test_a_whole_network_of_torchvision_loads_but_for_its_last_layer(tmp_path, squeezenet, suffix):
    model = build(SMALL, classes=3)
    head = model.head.weight.clone()
    report = initialize(model, SMALL, written(tmp_path / f"a.{suffix}", squeezenet))
    features = {k: v for k, v in squeezenet.items() if k.startswith("features.")}
    assert same(model.encoder, features)
    assert torch.equal(model.head.weight, head)
    assert (report.loaded, report.total) == (50, 50)
    assert (report.fresh, report.unused, report.head) == ((), (), False)
    assert "50 of 50 weights" in str(report)
    assert "head starts fresh" in str(report)


@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("alexnet", "meta"),
        ("resnet18", "meta"),
        ("resnet50", "meta"),
        ("vit_b_16", "meta"),
        pytest.param(
            "regnet_y_16gf", "cpu", marks=pytest.mark.slow
        ),  # cannot be built without values
    ],
)
def test_every_tensor_of_torchvisions_file_has_its_place(name, device):
    """Compare names only, on the meta device, where building large networks is fast."""
    with torch.device(device):
        stored = models.get_model(name).state_dict()
    places = _foreign_places(stored, BACKBONES[name].last_layer)
    own = build(name, classes=2, device=device).state_dict()
    assert set(places.values()) == {k for k in own if k.startswith("encoder.")}
    assert all(stored[k].shape == own[place].shape for k, place in places.items())
    assert len(stored) - len(places) == 2  # weight and bias of the last layer


def test_the_names_that_vits_published_file_uses_are_known():
    stored = "encoder.layers.encoder_layer_3.mlp.linear_2.bias"
    place = _foreign_places({stored: torch.zeros(1)}, ("heads",))[stored]
    assert place in build("vit_b_16", classes=2, device="meta").state_dict()


def test_a_part_of_a_network_loads_and_the_rest_is_named(tmp_path, squeezenet):
    last = "features.12."
    features = {k: v for k, v in squeezenet.items() if k.startswith("features.")}
    part = {k: v for k, v in features.items() if not k.startswith(last)}
    model = build(SMALL, classes=2)
    before = model.encoder.features[12].squeeze.weight.clone()
    report = initialize(model, SMALL, written(tmp_path / "part.pth", part))
    assert same(model.encoder, part)
    assert torch.equal(model.encoder.features[12].squeeze.weight, before)
    assert report.loaded == 44
    assert report.fresh == tuple(k for k in features if k.startswith(last))
    assert f"Fresh: {last}squeeze, {last}expand1x1, {last}expand3x3." in str(report)


def test_files_of_data_parallel_training_and_under_state_dict_load(tmp_path, resnet):
    old = {k: v for k, v in resnet.items() if not k.endswith("num_batches_tracked")}
    deeper = {"state_dict": {f"module.{k}": v for k, v in old.items()}, "epoch": 3}
    model = build("resnet18", classes=2)
    report = initialize(model, "resnet18", written(tmp_path / "a.pth", deeper))
    assert (report.loaded, report.fresh) == (100, ())


def test_caffenets_published_names_load(tmp_path):
    model = build("caffenet", classes=2)
    stored = {k: torch.rand_like(v) for k, v in model.encoder.state_dict().items()}
    stored |= {"classifier.fc8.weight": torch.zeros(1000, 4096)}
    report = initialize(model, "caffenet", written(tmp_path / "caffe.pth", stored))
    assert (report.loaded, report.unused) == (14, ())
    del stored["classifier.fc8.weight"]
    assert same(model.encoder, stored)


@pytest.mark.parametrize(("classes", "head"), [(10, True), (4, False)])
def test_a_model_saved_by_peerdg_loads_with_its_head_for_as_many_classes(tmp_path, classes, head):
    saved = build("digits-cnn-half", classes=10)
    save_model(tmp_path / "model", saved, backbone="digits-cnn-half", image_size=32)
    model = build("digits-cnn-half", classes=classes)
    path = tmp_path / "model" / "model.safetensors"
    report = initialize(model, "digits-cnn-half", str(path))
    assert (report.loaded, report.head) == (8, head)
    assert same(model.encoder, saved.encoder.state_dict())
    assert torch.equal(model.head.weight, saved.head.weight) == head


def test_a_model_of_timm_loads(tmp_path):
    timm = import_timm()
    stored = timm.create_model("convnext_atto", pretrained=False).state_dict()
    model = build("timm:convnext_atto", classes=2)
    path = written(tmp_path / "a.safetensors", stored)
    report = initialize(model, "timm:convnext_atto", path)
    assert report.loaded == report.total
    assert report.unused == ()
    assert same(model.encoder, {k: v for k, v in stored.items() if not k.startswith("head.fc.")})


@pytest.mark.parametrize("backbone", ["resnet18", "digits-cnn", "caffenet"])
def test_weights_of_another_network_are_refused_and_nothing_changes(tmp_path, squeezenet, backbone):
    model = build(backbone, classes=2)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    path = written(tmp_path / "a.pth", squeezenet)
    with pytest.raises(ConfigError, match=f"does not fit {backbone}") as error:
        initialize(model, backbone, path)
    assert "--weights none" in str(error.value)
    assert same(model, before)


def test_a_wrong_shape_is_refused_and_named(tmp_path, resnet):
    wrong = {**resnet, "layer1.0.conv1.weight": torch.zeros(64, 64, 1, 1)}
    with pytest.raises(ConfigError, match=r"'layer1.0.conv1.weight' has the shape"):
        initialize(build("resnet18", classes=2), "resnet18", written(tmp_path / "a.pth", wrong))


def test_hardly_any_weights_are_refused(tmp_path, resnet):
    few = {k: v for k, v in resnet.items() if k.startswith("conv1.")}
    with pytest.raises(ConfigError, match="only 1 of its"):
        initialize(build("resnet18", classes=2), "resnet18", written(tmp_path / "a.pth", few))


def test_missing_and_damaged_files_are_refused(tmp_path, squeezenet):
    model = build(SMALL, classes=2)
    with pytest.raises(DataError, match="file not found"):
        initialize(model, SMALL, str(tmp_path / "absent.pth"))
    (tmp_path / "torn.safetensors").write_bytes(b"\x08\0\0\0")
    with pytest.raises(DamagedError):
        initialize(model, SMALL, str(tmp_path / "torn.safetensors"))
    spoilt = {**squeezenet, "features.0.bias": torch.full((64,), float("nan"))}
    with pytest.raises(DamagedError, match=r"features.0.bias'"):
        initialize(model, SMALL, written(tmp_path / "nan.pth", spoilt))


def test_a_run_reports_loaded_weights_and_warns_of_unused_ones(tmp_path, squeezenet):
    path = written(tmp_path / "a.pth", squeezenet)
    config = resolve({"benchmark": "digits-mini", "backbone": SMALL, "weights": path})
    messages: list[str] = []
    model = build_model(config, ("a", "b"), note=messages.append)
    assert messages == [f"50 of 50 weights loaded from {path}. The head starts fresh."]
    assert model.mean.flatten().tolist() == pytest.approx([0.485, 0.456, 0.406])
    larger = {**squeezenet, "features.13.squeeze.weight": torch.zeros(2)}
    written(tmp_path / "a.pth", larger)
    with pytest.warns(PeerdgWarning, match=r"Not used from the file: features\.13\.squeeze"):
        build_model(config, ("a", "b"))


@pytest.fixture
def server(tmp_path: Path):
    """A web server for the files in its folder."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    folder = tmp_path / "served"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_download_is_verified_by_the_hash_in_its_name(tmp_path, server, monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    folder, url = server
    content = bytes(range(256)) * 9000
    name = f"net-{hashlib.sha256(content).hexdigest()[:8]}.pth"
    (folder / name).write_bytes(content)
    (folder / "net-00000000.pth").write_bytes(content)
    download(f"{url}/{name}", tmp_path / "cache" / name)
    assert (tmp_path / "cache" / name).read_bytes() == content
    with pytest.raises(DamagedError, match="was damaged"):
        download(f"{url}/net-00000000.pth", tmp_path / "cache" / "net-00000000.pth")
    with pytest.raises(ConfigError, match="404"):
        download(f"{url}/absent-00000000.pth", tmp_path / "cache" / "absent-00000000.pth")
    assert [p.name for p in (tmp_path / "cache").iterdir()] == [name]


def test_a_file_in_torchs_cache_is_used_if_its_hash_matches(tmp_path, squeezenet, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    path = tmp_path / "hub" / "checkpoints" / "squeezenet1_1-b8a52dc0.pth"
    path.parent.mkdir(parents=True)
    written(path, squeezenet)
    with pytest.raises(DamagedError, match="the hash in its name"):
        imagenet_file(SMALL)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr("peerdg.models.weights._hash_in", lambda _: digest[:8])
    assert imagenet_file(SMALL) == path
    assert initialize(build(SMALL, classes=2), SMALL, "imagenet").loaded == 50
