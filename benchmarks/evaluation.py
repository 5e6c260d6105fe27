"""Evaluation of a domain against the bare forward pass of the same network."""

import torch

from benchmarks.contenders import random_domain
from benchmarks.measure import rounds
from benchmarks.record import Found, Row, rate, ratio
from peerdg.evaluate.accuracy import evaluate_domain
from peerdg.models.backbones import build_classifier
from peerdg.models.classifier import images_per_pass

CASES = (("digits-cnn", 32, 32, 4096), ("squeezenet1_1", 227, 224, 64))


def run(repeats: int = 9) -> Found:
    """Measure."""
    rows: list[Row] = []
    raw: dict[str, object] = {}
    for backbone, stored, side, images in CASES:
        domain = random_domain(images, stored)
        model = build_classifier(backbone, classes=domain.classes).eval()
        batch = images_per_pass(side)
        ready = torch.rand(batch, 3, side, side).to(memory_format=torch.channels_last)

        def forward() -> None:
            with torch.inference_mode():
                for _ in range(images // batch):  # noqa: B023  (called in this round only)
                    model(ready)  # noqa: B023

        found = rounds(
            {
                "floor": forward,
                "evaluation": lambda: evaluate_domain(model, domain, size=side),  # noqa: B023
            },
            repeats=repeats,
        )
        raw[backbone] = dict(found.seconds)
        rows += [
            rate(f"{backbone}, {side} px: images", images, found["evaluation"]),
            ratio(f"{backbone}, {side} px: evaluation / floor", found.ratio("evaluation", "floor")),
        ]
    return Found(
        "evaluation",
        "Evaluation",
        "Time from a stored domain to accuracy and loss, compared with the forward pass alone on "
        f"images already in memory; {repeats} rounds. Photos are resized from 227 to 224 px before "
        "the forward pass.",
        rows,
        raw,
    )
