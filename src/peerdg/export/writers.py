"""Write a model as a graph (torch.export, ONNX) or as plain weights of its library."""

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

from peerdg.models.backbones import described
from peerdg.models.classifier import Classifier
from peerdg.models.ensemble import MeanHead
from peerdg.models.names import TIMM
from peerdg.models.stored import save_tensors

Run = Callable[[Tensor], Tensor]
"""From uint8 images `[n, 3, size, size]` to logits `[n, classes]`."""

INPUT, OUTPUT = "images", "logits"
ABOUT = "peerdg.json"  # inside a .pt2 file


def write_program(model: Classifier, path: Path, *, size: int, about: Mapping[str, Any]) -> Run:
    """Write `model` with `torch.export.save`, and return what runs the file.

    The graph takes uint8 images `[batch, 3, size, size]`, any number of them, and normalises them
    itself.
    """
    with _quiet():
        program = torch.export.export(
            _plain_copy(model),
            (_example(size),),
            dynamic_shapes={INPUT: {0: torch.export.Dim("batch")}},
        )
        torch.export.save(program, path, extra_files={ABOUT: json.dumps(about)})
        loaded = torch.export.load(path).module()

    def run(images: Tensor) -> Tensor:
        logits: Tensor = loaded(images)
        return logits

    return run


def write_onnx(model: Classifier, path: Path, *, size: int, about: Mapping[str, Any]) -> Run:
    """Write `model` as one ONNX file, and return what runs it in onnxruntime.

    The graph has the input `images`, uint8 `[batch, 3, size, size]`, and the output `logits`; the
    normalisation is inside, and `about` in the metadata.
    """
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
    assert program is not None  # noqa: S101  (narrows the type; None is for the old exporter)
    texts = {k: v if isinstance(v, str) else json.dumps(v) for k, v in about.items()}
    program.model.metadata_props.update(texts)
    program.save(path, external_data=False)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    def run(images: Tensor) -> Tensor:
        return torch.from_numpy(session.run([OUTPUT], {INPUT: images.numpy()})[0])

    return run


def _plain_copy(model: Classifier) -> Classifier:
    """On the CPU and with the usual layout of weights, which every reader of a graph knows."""
    plain: Classifier = copy.deepcopy(model).cpu().eval().requires_grad_(False)
    plain.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    return plain


def _example(size: int) -> Tensor:
    # Two images: a dimension of one would be taken for a constant.
    return torch.zeros(2, 3, size, size, dtype=torch.uint8)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporters' warnings about each other."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


# What torchvision calls the last layer of each network.
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
    """Where a network of the same architecture can be had, and how.

    Args:
        library: `"torchvision"`, `"timm"` or `"peerdg"`.
        last_layer: What the library calls the last layer; None keeps peerdg's names.
        code: Lines of Python that make the network `net`.
    """

    library: str
    last_layer: str | None
    code: tuple[str, ...]


def origin_of(model: Classifier, backbone: str) -> Origin:
    """How other code makes the network whose weights are exported."""
    classes = len(model.classes)
    if model.added or isinstance(model.head, MeanHead):  # no other library has such a network
        return Origin("peerdg", None, ())
    if backbone in _LAST_LAYER:
        code = [f"net = torchvision.models.{backbone}(num_classes={classes})"]
        if backbone == _SQUEEZENET:
            # Ours averages the map before the last layer, without the ReLU in between.
            code.append("net.classifier[2] = torch.nn.Identity()")
        return Origin("torchvision", _LAST_LAYER[backbone], tuple(code))
    if backbone.startswith(TIMM):
        last = described(model.encoder).last_layer
        name = backbone.removeprefix(TIMM)
        line = f'net = timm.create_model("{name}", num_classes={classes})'
        if len(last) == 1:
            return Origin("timm", last[0], (line,))
    return Origin("peerdg", None, ())


def write_weights(model: Classifier, path: Path, *, backbone: str, origin: Origin) -> Run:
    """Write the weights, and return what runs a network that is built again from the file."""
    save_tensors(path, _named(model, backbone, origin))
    network = _rebuild(model, backbone, origin)
    network.load_state_dict(load_file(path))
    network.eval()
    mean, std = model.mean.cpu(), model.std.cpu()
    normalises = origin.library == "peerdg"

    def run(images: Tensor) -> Tensor:
        logits: Tensor = network(images if normalises else (images / 255 - mean) / std)
        return logits

    return run


def _named(model: Classifier, backbone: str, origin: Origin) -> dict[str, Tensor]:
    tensors = model.state_dict()
    if origin.last_layer is None:
        return dict(tensors)
    named = {
        name.removeprefix("encoder."): tensor
        for name, tensor in tensors.items()
        if name.startswith("encoder.")
    }
    for part in ("weight", "bias"):
        named[f"{origin.last_layer}.{part}"] = tensors[f"head.{part}"]
    if backbone == _SQUEEZENET:  # a 1 x 1 convolution there
        named[f"{origin.last_layer}.weight"] = tensors["head.weight"][:, :, None, None]
    return named


def _rebuild(model: Classifier, backbone: str, origin: Origin) -> Any:
    """A fresh network, as the user's code will make it."""
    classes = model.classes
    if origin.library == "torchvision":
        from peerdg._vision import models

        network = models.get_model(backbone, num_classes=len(classes))
        if backbone == _SQUEEZENET:
            network.classifier[2] = nn.Identity()
        return network
    if origin.library == "timm":
        timm = importlib.import_module("timm")
        return timm.create_model(backbone.removeprefix(TIMM), num_classes=len(classes))
    network = copy.deepcopy(model).cpu()
    for tensor in network.state_dict().values():
        tensor.zero_()  # nothing may be left that the file does not hold
    return network
