"""Look into finished runs: similarity of features, the path between networks, and drift.

The analyses need the weights during training, which `keep_snapshots=True` stores.
"""

from pathlib import Path

import peerdg
from peerdg.analyze.cka import cka
from peerdg.analyze.connectivity import connectivity
from peerdg.analyze.drift import draw_drift, drift
from peerdg.analyze.networks import AnalyzedRun

runs = {}
for method in ("erm", "peer"):
    folder = f"runs/analyzed-{method}"
    peerdg.fit(
        "digits-mini",
        out=folder,
        existing="overwrite",
        method=method,
        budget="quick",
        keep_snapshots=True,
        evaluate_every=1,
        pretrain={"epochs": 1},
        train={"epochs": 2},
        targets=["street"],
        **({"peer": {"k": 1}} if method == "peer" else {}),
    )
    runs[method] = AnalyzedRun(folder)

for method, run in runs.items():
    print(f"\n{method}, snapshots after epochs {run.epochs}")

    # How similar are the features of each layer to those at the start?
    images = run.source_images(500)
    similarity = cka(run.network("init"), run.network("last"), images).diagonal
    print("CKA:", {layer: round(value, 2) for layer, value in similarity.items()})

    # Is there a drop in accuracy between the start and the end?
    line = connectivity(
        run.network("init"),
        run.network("last"),
        run.domains(200),
        size=run.size,
        clean=run.clean,
        points=3,
    )
    print("Gain in the middle:", round(line.gain("street"), 1), "points")

    # Which predictions change between snapshots?
    result = drift(run, max_images=200)
    print("Churn, %:", {domain: round(values[-1]) for domain, values in result.churn.items()})
    draw_drift(result, Path(f"runs/analyzed-{method}/drift"), title=method)
