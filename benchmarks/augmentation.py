"""RandAugment and the base transform against other libraries, at 32 and at 224 px."""

from benchmarks import randaugment
from benchmarks.measure import Timing
from benchmarks.record import Found, Row

CASES = {  # side, images of a batch, batches that are augmented together
    "32 px, batch 128": (32, 128, 1),
    "32 px, 8 batches of 128 as in training": (32, 128, 8),
    "224 px, batch 32": (224, 32, 1),
}
OURS = "peerdg, batched"
TORCHVISION = ("torchvision, PIL", "torchvision, tensors")


def run(repeats: int = 15) -> Found:
    """Measure."""
    rows: list[Row] = []
    raw: dict[str, object] = {}
    for case, (size, batch, count) in CASES.items():
        found = randaugment.measure(size, batch, count, repeats)
        raw[case] = {name: (t.median, t.low, t.high) for name, t in found.items()}
        rows += [_row(f"{case}: {name}", timing, found[OURS]) for name, timing in found.items()]
        faster = min(found[name].median for name in TORCHVISION if name in found)
        goal = "at least 12" if size == 32 else "at least 1"
        gain = f"{faster / found[OURS].median:.1f}"
        rows.append(Row(f"{case}: faster torchvision path / peerdg", gain, "", goal))
    return Found(
        "augmentation",
        "RandAugment",
        f"2 operations of magnitude 9 from torchvision's set, two threads; {repeats} rounds, "
        "taking turns. Training on small images augments several batches at once, with the same "
        "result. Other libraries draw from their own sets, which are as similar "
        "as these libraries allow.",
        rows,
        raw,
    )


def _row(what: str, timing: Timing, ours: Timing) -> Row:
    times = f"{timing.median / ours.median:.1f} times peerdg" if timing != ours else ""
    return Row(what, f"{1e6 * timing.median:.0f} µs an image", times)
