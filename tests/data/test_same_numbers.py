"""A published benchmark and own folders with the same images give the same results."""

import shutil
from pathlib import Path

import peerdg
from peerdg.run.config import resolve
from tests.data.test_pacs import small_counts, write_pacs

__all__ = ["small_counts"]  # a fixture that test_pacs uses everywhere


def as_own_folders(splits: peerdg.Splits, root: Path, out: Path) -> None:
    """Copy training and validation images to `out/train/<class>` and `out/validation/<class>`."""
    parts = {"train": splits.train, "validation": splits.validation}
    for name, domain in parts.items():
        for path in domain.paths:
            place = out / name / Path(path).parent.name
            place.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / path, place)


def test_own_folders_give_the_same_results_as_the_benchmark(tmp_path: Path):
    from peerdg.run.prepare import load_splits

    write_pacs(tmp_path / "pacs")
    common = {
        "method": "peer", "backbone": "squeezenet1_1", "weights": "none", "crafted": "off",
        "transform": {"size": 32, "crop": (0.8, 1.0), "flip": 0.5},
        "pretrain": {"epochs": 1, "batch_size": 4, "optimizer": "sgd", "lr": 0.005},
        "train": {"epochs": 1, "batch_size": 4, "lr": 1e-4}, "evaluate_every": 1,
    }  # fmt: skip
    common["augment"] = {"operations": "torchvision"}
    common["peer"] = {"k": 1, "w": 0.1, "head_layers": 2, "head_dim": 16}
    root, own = tmp_path / "pacs", tmp_path / "own"
    as_own_folders(load_splits(resolve({"benchmark": "pacs", "root": str(root)})), root, own)
    common["pretrain"] |= {"momentum": 0.9, "weight_decay": 0.0, "lr_step": 20, "lr_gamma": 0.5}
    published = peerdg.fit("pacs", root=str(root), targets=["sketch"], out=tmp_path / "a", **common)
    plain = peerdg.fit(
        own / "train", targets=[str(root / "sketch")], out=tmp_path / "b", **common,
        **{"own-data": {"validation_folder": str(own / "validation")}},
    )  # fmt: skip
    assert plain.accuracy.keys() == published.accuracy.keys()
    assert plain.records == published.records
