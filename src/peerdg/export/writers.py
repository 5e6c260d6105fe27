"""Write a model as a graph (torch.export, ONNX) or as plain weights for its library."""

import copy
import importlib
import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from peerdg._vision import models
from peerdg.models.backbones import described
from peerdg.models.classifier import Classifier
from peerdg.models.ensemble import MeanHead
from peerdg.models.names import TIMM
from peerdg.models.stored import save_tensors

Run = Callable[[Tensor], Tensor]  # maps uint8 images [n, 3, size, size] to logits [n, classes]

INPUT, OUTPUT = "images", "logits"
ABOUT = "peerdg.json"  # inside a .pt2 file


def write_program(model: Classifier, path: Path, *, size: int, about: Mapping[str, Any]) -> Run:
    """Write `model` with `torch.export.save`, and return a function that runs the file."""
    with _quiet():
        program = torch.export.export(
            _plain_copy(model),
            (_example(size),),
            dynamic_shapes={INPUT: {0: torch.export.Dim("batch")}},
        )
        torch.export.save(program, path, extra_files={ABOUT: json.dumps(about)})
        return torch.export.load(path).module()


def write_onnx(model: Classifier, path: Path, *, size: int, about: Mapping[str, Any]) -> Run:
    """Write `model` as an ONNX file with `about` as metadata, and return a function to run it."""
    import onnxruntime

    with _quiet():
        program = torch.onnx.export(
            _plain_copy(model),
            (_example(size),),
            dynamo=True,
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes={INPUT: {0: "batch"}},
            verbose=False,
        )
    assert program is not None  # noqa: S101  (only None with `dynamo=False`)
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in about.items()}
    program.model.metadata_props.update(texts)
    program.save(path, external_data=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> Tensor:
        return torch.from_numpy(session.run([OUTPUT], {INPUT: images.numpy()})[0])

    return run


def _plain_copy(model: Classifier) -> Classifier:
    """Copy the model to the CPU in the contiguous memory format, which all runtimes support."""
    plain: Classifier = copy.deepcopy(model).cpu().eval().requires_grad_(False)
    plain.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    return plain


def _example(size: int) -> Tensor:
    # Two images, because the exporter treats a dimension of 1 as constant.
    return torch.zeros(2, 3, size, size, dtype=torch.uint8)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide deprecation warnings from inside the exporters."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


# Name of the last layer of each torchvision network.
_LAST_LAYER = {
    "alexnet": "classifier.6",
    "squeezenet1_1": "classifier.1",
    "resnet18": "fc",
    "resnet50": "fc",
    "vit_b_16": "heads.head",
    "regnet_y_16gf": "fc",
}
_SQUEEZENET = "squeezenet1_1"


class Origin(NamedTuple):
    """Library that a network comes from. Only peerdg's networks and graphs normalize images."""

    library: str = "peerdg"  # "peerdg", "torchvision" or "timm"
    last_layer: str = ""  # name of the last layer in the library
    code: tuple[str, ...] = ()  # Python lines that build the network `net`


def origin_of(model: Classifier, backbone: str) -> Origin:
    """Return the library that a network comes from, and the code that builds it."""
    classes = len(model.classes)
    if model.added or isinstance(model.head, MeanHead):  # exists only in peerdg
        return Origin()
    if backbone in _LAST_LAYER:
        code = [f"net = torchvision.models.{backbone}(num_classes={classes})"]
        if backbone == _SQUEEZENET:
            # peerdg averages the feature map before the last layer, without ReLU in between.
            code.append("net.classifier[2] = torch.nn.Identity()")
        return Origin("torchvision", _LAST_LAYER[backbone], tuple(code))
    if backbone.startswith(TIMM):
        last = described(model.encoder).last_layer
        name = backbone.removeprefix(TIMM)
        if len(last) == 1:
            line = f'net = timm.create_model("{name}", num_classes={classes})'
            return Origin("timm", last[0], (line,))
    return Origin()


def write_weights(model: Classifier, path: Path, *, backbone: str, origin: Origin) -> Run:
    """Write the weights, and return a function that runs a network rebuilt from the file."""
    save_tensors(path, _named(model, backbone, origin))
    network: nn.Module = _rebuild(model, backbone, origin)
    network.load_state_dict(load_file(path))
    network.eval()
    if origin.library == "peerdg":
        return network
    mean, std = model.mean.cpu(), model.std.cpu()
    return lambda images: network((images / 255 - mean) / std)


def _named(model: Classifier, backbone: str, origin: Origin) -> dict[str, Tensor]:
    if origin.library == "peerdg":
        return model.state_dict()
    tensors = model.network_state_dict(origin.last_layer)
    if backbone == _SQUEEZENET:  # its last layer is a 1 x 1 convolution
        weight = f"{origin.last_layer}.weight"
        tensors[weight] = tensors[weight][:, :, None, None]
    return tensors


def _rebuild(model: Classifier, backbone: str, origin: Origin) -> Any:
    """Build a new network, as the user's code would."""
    classes = len(model.classes)
    if origin.library == "timm":
        timm = importlib.import_module("timm")
        return timm.create_model(backbone.removeprefix(TIMM), num_classes=classes)
    if origin.library == "torchvision":
        network: Any = models.get_model(backbone, num_classes=classes)
        if backbone == _SQUEEZENET:
            network.classifier[2] = nn.Identity()
        return network
    network = copy.deepcopy(model).cpu()
    for tensor in network.state_dict().values():
        tensor.zero_()  # so that weights missing from the file are noticed
    return network
