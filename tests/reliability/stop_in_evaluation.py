"""A tiny training that sends itself a signal inside an evaluation.

python -m tests.reliability.stop_in_evaluation OUT [PASS SIGNAL]

PASS counts the passes of the network through chunks of evaluated images in this process; without
it nothing disturbs the run. Prints the number of passes after the signal. It resumes what is in
OUT, and ends like the command line.
"""

import os
import sys
from dataclasses import replace

import torch

import peerdg
from peerdg.errors import PeerdgError
from tests.conftest import tiny_domain, tiny_splits
from tests.reliability.tiny_run import OPTIONS, tiny_model


class Signalling(torch.nn.Module):
    """An encoder that counts evaluated chunks and sends the signal at one of them."""

    passes = 0  # of all copies: proxy and task model

    def __init__(self, encoder: torch.nn.Module, at: int, number: int) -> None:
        super().__init__()
        self.encoder, self.at, self.number = encoder, at, number

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        # Only evaluation runs in inference mode with more than one image.
        if torch.is_inference_mode_enabled() and len(images) > 1:
            Signalling.passes += 1
            if Signalling.passes == self.at:
                os.kill(os.getpid(), self.number)
        return self.encoder(images)


def main(out: str, at: str = "0", number: str = "15") -> int:
    model = tiny_model()
    model.encoder = Signalling(model.encoder, int(at), int(number))
    # Three chunks of images of this size.
    splits = replace(tiny_splits(), targets={"large": tiny_domain("large", n=600, seed=5)})
    try:
        peerdg.fit(splits, out=out, model=model, existing="resume", **OPTIONS)
        code = 0
    except PeerdgError as error:
        print(error, file=sys.stderr)
        code = error.exit_code
    print(Signalling.passes - int(at))
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
