"""RandAugment and the base transform against other libraries, at 32 and at 224 px."""

from benchmarks import randaugment
from benchmarks.measure import Timing
from benchmarks.record import Found, Row

CASES = ((32, 128), (32, 1024), (224, 32))
OURS = "peerdg, batched"
TORCHVISION = ("torchvision, PIL", "torchvision, tensors")


def run(repeats: int = 15) -> Found:
    """Measure."""
    rows: list[Row] = []
    raw: dict[str, object] = {}
    for size, batch in CASES:
        found = randaugment.measure(size, batch, repeats)
        raw[f"{size} px, batch {batch}"] = {
            name: (t.median, t.low, t.high) for name, t in found.items()
        }
        rows += [_row(name, size, batch, timing, found[OURS]) for name, timing in found.items()]
        faster = min(found[name].median for name in TORCHVISION if name in found)
        goal = "at least 12" if size == 32 else "at least 1"
        gain = f"{faster / found[OURS].median:.1f}"
        rows.append(
            Row(f"{size} px, batch {batch}: faster torchvision path / peerdg", gain, "", goal)
        )
    return Found(
        "augmentation",
        "RandAugment",
        f"2 operations of magnitude 9 from torchvision's set, two threads; {repeats} rounds, "
        "taking turns. Other libraries draw from their own sets, as near to these as they offer.",
        rows,
        raw,
    )


def _row(name: str, size: int, batch: int, timing: Timing, ours: Timing) -> Row:
    each = 1e6 / batch
    times = f"{timing.median / ours.median:.1f} times peerdg" if name != OURS else ""
    return Row(
        f"{size} px, batch {batch}: {name}", f"{each * timing.median:.0f} µs an image", times
    )
