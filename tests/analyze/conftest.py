from pathlib import Path
from typing import Any

import pytest
import torch

import peerdg
from tests.cli.stored_models import save_photos

EPOCHS, K = 4, 2


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory, session_cache: Path) -> dict[str, Path]:
    """Three runs on the same folders of images. `plain` keeps no snapshots."""
    folder = tmp_path_factory.mktemp("analyzed")
    source = save_photos(folder / "photos", per_class=10)
    target = save_photos(folder / "paintings", per_class=5, seed=1)
    options: dict[str, dict[str, Any]] = {
        "peer": {"method": "peer", "peer": {"k": K, "head_dim": 4}},
        "randaugment": {
            "method": "randaugment",
            "randaugment": {"k": K},
            "average": {"kind": ["snapshots"]},
        },
        "plain": {"method": "erm"},
    }
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PEERDG_CACHE", str(session_cache))
        for name, chosen in options.items():
            peerdg.fit(
                source,
                out=folder / name,
                targets=[target],
                backbone="digits-cnn-half",
                weights="none",
                crafted="off",
                keep_snapshots=name != "plain",
                evaluate_every=K,
                share_pretraining=False,
                transform={"size": 32},
                pretrain={"epochs": 1, "batch_size": 8},
                train={"epochs": EPOCHS, "batch_size": 8},
                progress=False,
                **chosen,
            )
    return {name: folder / name for name in options}
