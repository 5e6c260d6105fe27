"""A step of PEER on photos of 224 px, where the clean view is random, against its floor.

The floor includes the task model's forward pass, which cannot be remembered there.
"""

from benchmarks.contenders import Floor, Trained, random_domain
from benchmarks.measure import rounds
from benchmarks.record import Found, Row, milliseconds, ratio
from peerdg.train.settings import TransformSettings

IMAGES, BATCH, SIDE = 200, 32, 224
TRANSFORM = TransformSettings(size=SIDE, crop=(0.8, 1.0), flip=0.5)


def run(repeats: int = 25) -> Found:
    """Measure."""
    rows: list[Row] = []
    raw: dict[str, object] = {}
    for backbone in ("squeezenet1_1", "resnet18"):
        floor = Floor(backbone, BATCH, SIDE, task_forward=True)
        domain = random_domain(IMAGES, 227)
        peer = Trained(domain, backbone, BATCH, transform=TRANSFORM, head=(3, 1024))
        found = rounds({"floor": floor.step, "peer": peer.step}, repeats=repeats)
        raw[backbone] = dict(found.seconds)
        rows += [
            milliseconds(f"{backbone}: bare step and task model (floor)", found["floor"]),
            milliseconds(f"{backbone}: PEER step", found["peer"]),
            ratio(f"{backbone}: PEER / floor", found.ratio("peer", "floor"), "at most 1.10"),
        ]
    return Found(
        "photos",
        "Photos of 224 px",
        f"{IMAGES} images stored at 227 px, random crop and flip to {SIDE} px, batch {BATCH}, 2 "
        f"operations of magnitude 9, projection head of 3 layers to 1024; {repeats} steps each, "
        "taking turns. Nothing is computed ahead, so an epoch takes as long as its steps. Weights "
        "are random.",
        rows,
        raw,
    )
