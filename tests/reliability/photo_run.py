"""A small run on images in files, made by the command line, and what is in its folder."""

import json
from pathlib import Path

from peerdg.cli.main import run
from tests.cli.stored_models import save_photos

# fmt: off
OPTIONS = (
    "--backbone", "digits-cnn-half", "--weights", "none", "--transform.size", "32",
    "--pretrain.epochs", "1", "--epochs", "2", "--peer.k", "1", "--peer.head-dim", "8",
    "--checkpoint-minutes", "0", "--threads", "1", "--keep-snapshots", "--quiet",
)
# fmt: on


def photo_run(folder: Path, *options: str) -> Path:
    """Train on `folder/photos` into `folder/run`; returns the run folder."""
    photos = save_photos(folder / "photos")
    out = folder / "run"
    assert run(["train", str(photos), "--out", str(out), *OPTIONS, *options], debug=False) == 0
    return out


def interrupt(out: Path) -> None:
    """Make a finished run one that was killed just before its end."""
    (out / "done.json").unlink()


def edit_json(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
