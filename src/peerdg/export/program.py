"""A model as one self-contained graph: torch's own .pt2 file, and ONNX."""

import copy
import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from peerdg.export.check import Run
from peerdg.models.classifier import Classifier

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
