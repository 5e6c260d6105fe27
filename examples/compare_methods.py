"""Compare methods over several seeds, with the difference from plain training for each seed.

Each run is a process of its own. Repeat the script to continue after an interruption: finished runs
are not trained again.
"""

import peerdg

table = peerdg.bench(
    "digits-mini",
    methods=["erm", "p-ens", "peer"],
    seeds=2,  # use at least five for intervals
    jobs=2,
    out="runs/comparison",
    budget="quick",
    targets=["street", "uci"],
    pretrain={"epochs": 1},
    train={"epochs": 2, "steps_per_epoch": 10},
    evaluate_every=1,
    peer={"k": 1},
    randaugment={"k": 1},  # p-ens is RandAugment with the mean of snapshots
)
for row in table["rows"]:
    gain = f"{row['difference']['mean']:+.1f}" if row["difference"] else ""
    print(f"{row['method']:8} {row['score']['mean']:5.1f} {gain}")
print("Report:", table["page"])
