"""A whole epoch of PEER on Digits against its floor and against a plain reference loop.

Contenders take turns step by step, and the steps for which PEER augments at once count as one
turn. What PEER does once in k epochs is measured by itself and added in its share.
"""

from collections.abc import Callable

import torch

from benchmarks.contenders import (
    Floor,
    MethodFloor,
    ReferenceProcess,
    Trained,
    flops,
    random_domain,
)
from benchmarks.measure import Rounds, rounds
from benchmarks.record import Found, Row, milliseconds, ratio
from peerdg.train.source import PIXELS_AHEAD

IMAGES, BATCH, SIDE, K, SGEMM = 10_000, 128, 32, 10, 2048
STEPS = IMAGES // BATCH
AHEAD = PIXELS_AHEAD // (BATCH * SIDE**2)  # steps that are augmented at once
BLOCK = 2 * AHEAD


def run(turns: int = 20, blocks: int = 12) -> Found:
    """Measure: single steps taking turns, then whole blocks against the reference."""
    domain = random_domain(IMAGES, SIDE)
    floor = Floor("digits-cnn", BATCH, SIDE)
    own = MethodFloor("digits-cnn", BATCH, SIDE)
    two, four = (Trained(domain, "digits-cnn", BATCH, num_ops=n, k=K) for n in (2, 4))
    a = torch.randn(SGEMM, SGEMM)
    steps = rounds(
        {
            "sgemm": lambda: a @ a,
            "floor": floor.step,
            "own": own.step,
            "peer": two.step,
            "peer4": four.step,
        },
        repeats=turns * AHEAD,
    ).means(AHEAD)
    once = rounds(
        {"refresh": two.refresh, "features": lambda: own.features(domain.images)}, repeats=3
    )
    refresh, features = once["refresh"], once["features"]
    reference = ReferenceProcess(BLOCK)
    contenders = {"reference": reference.epoch, "peer": lambda: _block(two.step)}
    against = rounds(contenders, repeats=blocks)
    reference.close()
    share = refresh.median / (K * STEPS)  # of each step, in what a period does once
    return Found(
        "epoch",
        "An epoch on Digits",
        f"{IMAGES:,} images of {SIDE} px, Digits CNN, batch {BATCH}, k = {K}, operations of "
        f"magnitude 9; {turns} turns of {AHEAD} steps, which alternate, and {blocks} blocks of "
        f"{BLOCK} steps against the reference loop. The floor is forward, backward and fused Adam "
        "on two views already in memory. With the method's own arithmetic, it also includes the "
        "projection head, Barlow Twins and the share of the task model's features. An epoch of "
        "PEER includes its share of the work that is done once in k epochs. Ratios are computed "
        "within each turn.",
        [
            ratio(
                "PEER epoch / floor with the method's own arithmetic",
                steps.plus("epoch", of="peer", seconds=share)
                .plus("arithmetic", of="own", seconds=features.median / (K * STEPS))
                .ratio("epoch", "arithmetic"),
                "at most 1.03",
            ),
            milliseconds("bare step (floor)", steps["floor"]),
            milliseconds("bare step with the method's own arithmetic", steps["own"]),
            milliseconds("PEER step", steps["peer"]),
            milliseconds(f"snapshot and task features, once in {K} epochs", refresh),
            Row("PEER epoch", f"{STEPS * (steps['peer'].median + share):.1f} s"),
            *_floor_rows(steps, share),
            ratio(
                "reference loop / PEER epoch",
                against.plus("epoch", of="peer", seconds=BLOCK * share).ratio("reference", "epoch"),
                "at least 1.6",
            ),
            *_speed_rows(steps, share, flops(floor)),
        ],
        raw={
            "steps": steps.seconds,
            "blocks": against.seconds,
            "refresh": refresh.median,
            "features": features.median,
        },
    )


def _block(step: Callable[[], None]) -> None:
    for _ in range(BLOCK):
        step()


def _floor_rows(steps: Rounds, share: float) -> list[Row]:
    steps = steps.plus("two", of="peer", seconds=share).plus("four", of="peer4", seconds=share)
    return [
        ratio("PEER epoch / floor, 2 operations", steps.ratio("two", "floor"), "at most 1.05"),
        ratio("PEER epoch / floor, 4 operations", steps.ratio("four", "floor")),
    ]


def _speed_rows(steps: Rounds, share: float, operations: float) -> list[Row]:
    """`operations` are the floating-point operations of a bare step."""
    peak = 2 * SGEMM**3 / steps["sgemm"].median
    bare = operations / steps["floor"].median
    peer = operations / (steps["peer"].median + share)
    return [
        Row(f"sgemm peak, {SGEMM} x {SGEMM}", f"{peak / 1e9:.0f} GFLOPS"),
        Row("bare step", f"{bare / 1e9:.0f} GFLOPS", f"{operations / 1e9:.1f} GFLOP each"),
        Row("bare step / sgemm peak", f"{bare / peak:.2f}", "", "at least 0.65"),
        Row("PEER, counting the bare step's operations", f"{peer / 1e9:.0f} GFLOPS"),
    ]
