"""A tiny training that sends its own process a signal inside an evaluation."""

import os
from dataclasses import replace
from pathlib import Path

import torch

import peerdg
from tests.conftest import tiny_domain, tiny_splits
from tests.reliability.tiny_run import OPTIONS, tiny_model


class Signalling(torch.nn.Module):
    """An encoder that counts evaluated chunks and sends the signal at one of them."""

    passes = 0  # of all copies: proxy and task model

    def __init__(self, encoder: torch.nn.Module, at: int, number: int) -> None:
        super().__init__()
        Signalling.passes = 0
        self.encoder, self.at, self.number = encoder, at, number

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        # Only evaluation runs in inference mode with more than one image.
        if torch.is_inference_mode_enabled() and len(images) > 1:
            Signalling.passes += 1
            if Signalling.passes == self.at:
                os.kill(os.getpid(), self.number)
        return self.encoder(images)


def train(out: Path, *, at: int = 0, number: int = 0) -> None:
    """Start or resume the run in `out`.

    Args:
        out: The run folder.
        at: Send the signal in this pass of the network through a chunk of evaluated images, counted
            from 1 over both networks; with 0 nothing disturbs the run.
        number: The signal.
    """
    model = tiny_model()
    model.encoder = Signalling(model.encoder, at, number)
    # Three chunks of images of this size.
    splits = replace(tiny_splits(), targets={"large": tiny_domain("large", n=600, seed=5)})
    peerdg.fit(splits, out=out, model=model, existing="resume", **OPTIONS)
