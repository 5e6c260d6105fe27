"""Compare the results of two versions, bit for bit.

    python -m benchmarks.same_results facts.json --record --tree OLD_CHECKOUT
    python -m benchmarks.same_results facts.json    # compare this checkout with the old one

Each case runs real commands on one thread: every objective (also killed and resumed), batch
normalization under both rules, every augmentation and average, images of your own, `evaluate`,
`predict`, `export`, `combine`, `bench` and all resolved configs. The facts of a case are the
deployed weights, the records and the fingerprints of the data. Exit code 1 if one differs.
Only cases that are in the file are compared. With `--data DIR` the real digits and PACS are part of
it.
"""

import argparse
import csv
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from safetensors.numpy import load_file

Facts = dict[str, Any]
TINY = (
    "--budget quick --threads 1 --quiet --train.epochs 4 --train.steps-per-epoch 3 "
    "--train.batch-size 32 --pretrain.epochs 1 --pretrain.steps-per-epoch 3"
)
OBJECTIVES = {
    "ada": "--ada.k 2 --ada.steps 3 --ada.rate 20",
    "advst": "--advst.every 1 --advst.k 2 --advst.steps 3 --advst.batch-size 50 "
    "--advst.head-dim 8 --advst.eta-min 0.1",
    "augmix": "",
    "barlow-twins": "--barlow-twins.k 2",
    "erm": "",
    "l2d": "--l2d.kernels 3 --l2d.kernels 5 --l2d.dim 8",
    "m-ada": "--m-ada.k 2 --m-ada.steps 3 --m-ada.rate 20 --m-ada.wae-epochs 2 --m-ada.wae-batch 8",
    "me-ada": "--me-ada.k 2 --me-ada.steps 3 --me-ada.rate 20",
    "metacnn": "--metacnn.k 2 --metacnn.atoms 8 --metacnn.addressed 2",
    "miro": "--miro.k 2 --miro.views both",
    "mixstyle": "",
    "pden": "--pden.domains 3 --pden.k 1 --pden.width 4 --pden.dim 8",
    "peer": "--peer.k 2 --peer.gradient-images 0",
    "randaugment": "--randaugment.k 2",
    "randconv": "",
    "simde": "--simde.width 4",
}
PEER_OPTIONS = {
    "info-nce": "--peer.regulariser info-nce",
    "views": "--peer.views both_same --peer.scale mean --peer.w 1",
    "reset": "--peer.reset-proxy --peer.head frozen",
    "init": "--peer.include-init --peer.no-cache-features --peer.no-head-grad-target",
    "latest": "--peer.no-average --peer.no-augment",
}
AUGMENTS = ("randconv", "pro-randconv", "augmix", "l2d-generator", "pden-generator")
DIGITS = "digits-mini --digits-mini.train 400"
OWN = (
    "--backbone resnet18 --weights none --transform.size 64 --transform.crop 0.8 1.0 "
    "--transform.flip 0.5"
)


class Net:
    """Run the commands of one checkout in a scratch folder."""

    def __init__(self, tree: Path, folder: Path, data: Path | None) -> None:
        self.folder, self.data = folder, data
        self.cases: dict[str, Callable[[], Facts]] = {}
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(tree / "src"),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "OMP_NUM_THREADS": "1",
        }

    def command(self, words: str, *, out: Path | None = None) -> list[str]:
        """Return a `peerdg` command line."""
        tail = [] if out is None else ["--out", str(out)]
        return [sys.executable, "-m", "peerdg", *words.split(), *tail]

    def run(self, words: str, *, out: Path | None = None) -> str:
        """Run a command to its end and return its standard output."""
        return subprocess.run(
            self.command(words, out=out), env=self.environment, cwd=self.folder, check=True,
            stdout=subprocess.PIPE, text=True,
        ).stdout  # fmt: skip

    def train(self, name: str, words: str, data: str = DIGITS) -> Facts:
        """Train once and return the facts of the run."""
        out = self.folder / name
        self.run(f"train {data} {words} {TINY}", out=out)
        return run_facts(out)

    def trained(self, name: str) -> Path:
        """Return the run folder of another case, which is trained if it was not yet."""
        if not (self.folder / name).exists():
            self.cases[name]()
        return self.folder / name

    def killed(self, name: str, words: str) -> Facts:
        """Train, kill the process after its second epoch, resume it; return the facts."""
        out = self.folder / f"{name}-killed"
        words = f"train {DIGITS} {words} {TINY} --checkpoint-minutes 0"
        process = subprocess.Popen(
            self.command(words, out=out), env=self.environment, stdout=subprocess.DEVNULL
        )
        while process.poll() is None and _epochs(out) < 3:  # one of pre-training, two of training
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        self.run(f"resume {out} --quiet")
        facts = run_facts(out)
        facts.pop("config")  # its checkpoints are more frequent
        return facts

    def own_folder(self) -> Path:
        """Draw a folder of odd images: two domains, three classes, several formats."""
        root = self.folder / "own"
        rng = np.random.default_rng(0)
        for domain, low in (("photo", 0), ("sketch", 90)):
            for label, shift in (("ant", 0), ("bee", 60), ("cat", 120)):
                place = root / domain / label
                place.mkdir(parents=True, exist_ok=True)
                for i in range(12):
                    side = 40 + 3 * i
                    pixels = rng.integers(low, low + 60, (side, 72, 3)) + shift // 2
                    _save(place, i, pixels.clip(0, 255).astype(np.uint8))
        return root


def _save(place: Path, number: int, pixels: np.ndarray) -> None:
    image = Image.fromarray(pixels)
    match number % 6:
        case 0:
            image.save(place / f"{number}.jpg", quality=90)
        case 1:
            exif = Image.Exif()
            exif[0x0112] = 6  # rotated by 90 degrees
            image.save(place / f"{number}.jpg", quality=90, exif=exif)
        case 2:
            Image.fromarray(pixels[..., 0].astype(np.uint16) * 257).save(place / f"{number}.png")
        case 3:
            image.putalpha(Image.fromarray(pixels[..., 1]))
            image.save(place / f"{number}.png")
        case 4:
            image.convert("CMYK").save(place / f"{number}.jpg", quality=95)
        case 5:
            image.convert("L").save(place / f"{number}.png")


def run_facts(run: Path) -> Facts:
    """Return weights, records, options and fingerprints of a finished run."""
    weights = load_file(next((run / "model").glob("*.safetensors")))
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for record in records:
        record.pop("gradients", None)
    config = tomllib.loads((run / "config.toml").read_text())
    config.get("peer", {}).pop("gradient_images", None)  # its default is 0 now
    config.get("pacs", {}).pop("release", None)  # there is only one now
    manifest = json.loads((run / "manifest.json").read_text())
    data = manifest.get("data") or manifest.get("fingerprints") or {}
    return _american(
        {
            "weights": {name: _digest(array.tobytes()) for name, array in sorted(weights.items())},
            "records": records,
            "config": config,
            "data": data,
        }
    )


def _american(facts: Any) -> Any:
    """Spell one renamed option and term alike in both versions."""
    return json.loads(json.dumps(facts).replace("regulariser", "regularizer"))


def _epochs(run: Path) -> int:
    file = run / "events.jsonl"
    return file.read_text().count('"event": "epoch"') if file.exists() else 0


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def cases(net: Net) -> dict[str, Callable[[], Facts]]:
    """Return every case by its name, in an order in which later ones may use earlier runs."""
    every = net.cases
    every["configs"] = lambda: configs(net)

    def add(name: str, words: str, data: str = DIGITS) -> None:
        every[name] = lambda: net.train(name, words, data)

    for method, options in OBJECTIVES.items():
        add(method, f"--method {method} {options}")
        words = f"--method {method} {options}"
        every[f"{method}-killed"] = lambda m=method, w=words: net.killed(m, w)  # type: ignore[misc]
    for name, options in PEER_OPTIONS.items():
        add(f"peer-{name}", f"--method peer {OBJECTIVES['peer']} {options}")
    add("peer-gradient", "--method peer --peer.k 2 --peer.scale gradient --peer.gradient-images 16")
    for kind in AUGMENTS:
        add(f"augment-{kind}", f"--method peer {OBJECTIVES['peer']} --augment.kind {kind}")
    averages = "--average.kind snapshots,swa,ema,sma,swad --average.also last-1"
    add("averages", f"--method randaugment --randaugment.k 1 {averages} --crafted all")
    for recipe in ("p-ens", "peer-ema", "advst-me", "oracle-erm"):
        options = OBJECTIVES["advst"] if recipe == "advst-me" else ""
        add(recipe, f"--method {recipe} {options}")
    own = net.own_folder()
    own_data = f"{own / 'photo'} --target {own / 'sketch'}"
    for rule in ("clean", "trained"):
        words = f"--method peer {OBJECTIVES['peer']} {OWN} --batch-statistics {rule}"
        add(f"own-{rule}", f"{words} --own-data.size 64", own_data)
    for method in ("l2d", "metacnn", "mixstyle", "miro"):
        words = f"--method {method} {OBJECTIVES[method]} {OWN} --own-data.size 64"
        add(f"own-{method}", words, own_data)
    every["teacher"] = lambda: net.train(
        "teacher", f"--method teacher --teacher.k 2 --teacher.model {net.trained('erm')}"
    )
    add("erm-1", "--method erm --seed 1")
    every["evaluate"] = lambda: evaluation(net, own)
    every["predict"] = lambda: prediction(net, own)
    every["export"] = lambda: export(net)
    every["combine"] = lambda: combination(net)
    every["bench"] = lambda: bench(net)
    if net.data is not None:
        digits = f"digits --root {net.data / 'digits'}"
        add("digits", "--method erm", f"{digits} --target svhn --target mnist-m --target usps")
        lists = f"--pacs.lists {net.data / 'PACS_splits'} --target sketch"
        add("pacs", f"--method erm {OWN}", f"pacs --root {net.data / 'PACS'} {lists}")
    return every


def configs(net: Net) -> Facts:
    """Hash the resolved options of every data set, budget and method."""
    program = """
import hashlib, json
try:
    from peerdg.run.config import resolve
except ImportError:  # its name in older versions
    from peerdg.run.settings import resolve
result = {}
for data in ("digits-mini", "digits", "pacs", "office-home", "vlcs", "terra"):
    for budget in ("quick", "standard", "paper"):
        for method in METHODS:
            config = resolve({"benchmark": data, "budget": budget, "method": method})
            tables = config.tables()
            tables.get("peer", {}).pop("gradient_images", None)
            tables.get("pacs", {}).pop("release", None)
            text = json.dumps(tables, sort_keys=True).replace("regulariser", "regularizer")
            result[f"{data} {budget} {method}"] = hashlib.sha256(text.encode()).hexdigest()[:16]
print(json.dumps(result))
"""
    names = [*OBJECTIVES, "teacher", "p-ens", "swa", "ema", "sma", "swad", "peer-ema", "peer-sma"]
    names += ["peer-no-average", "advst-me", "pro-randconv", "oracle-erm"]
    text = subprocess.run(
        [sys.executable, "-c", f"METHODS = {names!r}\n{program}"], env=net.environment, check=True,
        stdout=subprocess.PIPE, text=True,
    ).stdout  # fmt: skip
    return dict(json.loads(text))


def evaluation(net: Net, own: Path) -> Facts:
    """Evaluate a model on its own data and on new images."""
    facts = {}
    for name, words in {"own-clean": f"{own / 'sketch'}", "peer": ""}.items():
        file = net.folder / f"evaluate-{name}.json"
        net.run(f"evaluate {net.trained(name)} {words} --json {file}")
        facts[name] = [_numbers(json.loads(file.read_text()))]
    return facts


def _numbers(value: Any) -> Any:
    """Keep the numbers and labels of nested results; paths and software versions differ."""
    left_out = ("path", "paths", "file", "model", "software", "versions", "root", "folder", "name")
    if isinstance(value, dict):
        return {key: _numbers(item) for key, item in value.items() if key not in left_out}
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    return value


def prediction(net: Net, own: Path) -> Facts:
    """Predict a folder of images."""
    file = net.folder / "predict.csv"
    net.run(f"predict {net.trained('own-clean')} {own / 'sketch'} -o {file} --all --quiet")
    with file.open() as stream:
        rows = list(csv.DictReader(stream))
    for row in rows:
        for column, cell in row.items():
            row[column] = cell.replace(str(net.folder), "")
    return {"rows": rows}


def export(net: Net) -> Facts:
    """Export models and hash their logits on fixed images."""
    import onnxruntime

    facts = {}
    for name, side in (("peer", 32), ("own-clean", 64), ("l2d", 32), ("metacnn", 32)):
        file = net.folder / f"{name}.onnx"
        net.run(f"export {net.trained(name)} --format onnx -o {file}")
        session = onnxruntime.InferenceSession(file)
        images = np.random.default_rng(1).random((3, 3, side, side), dtype=np.float32)
        inputs = session.get_inputs()[0]
        if inputs.type == "tensor(uint8)":
            images = (images * 255).astype(np.uint8)
        (logits, *_) = session.run(None, {inputs.name: images})
        facts[name] = logits.tolist()
    return facts


def combination(net: Net) -> Facts:
    """Combine two runs by each rule and hash the weights."""
    facts = {}
    for rule in ("uniform", "greedy", "ensemble"):
        out = net.folder / f"combined-{rule}"
        net.run(f"combine {net.trained('erm')} {net.trained('erm-1')} --rule {rule} -o {out}")
        files = sorted(out.rglob("*.safetensors"))
        facts[rule] = sorted(
            _digest(array.tobytes()) for file in files for array in load_file(file).values()
        )
    return facts


def bench(net: Net) -> Facts:
    """Compare the runs and the table of a small bench."""
    out = net.folder / "bench"
    words = TINY.replace("--quiet", "")
    net.run(f"bench {DIGITS} --methods erm,p-ens,peer --seeds 2 {words}", out=out)
    facts: Facts = {}
    for model in sorted(out.rglob("model.json")):
        facts[model.parents[1].relative_to(out).as_posix()] = run_facts(model.parents[1])
    return {"runs": sorted(facts.values(), key=json.dumps)}


def compare(old: Any, new: Any, where: str = "") -> list[str]:
    """Name the places where two facts differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        if where.endswith("/weights") and old.keys() != new.keys():  # MetaCNN's have other names
            return compare(sorted(old.values()), sorted(new.values()), where)
        keys = sorted({*old, *new})
        return [
            line for key in keys for line in compare(old.get(key), new.get(key), f"{where}/{key}")
        ]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = zip(old, new, strict=True)
        return [line for i, (a, b) in enumerate(pairs) for line in compare(a, b, f"{where}[{i}]")]
    return [] if old == new else [f"{where}: {str(old)[:120]} -> {str(new)[:120]}"]


def main() -> int:
    """Record or compare the cases that were asked for; 1 if one differs."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("facts", type=Path, help="JSON file to compare with or to record in")
    parser.add_argument("cases", nargs="*", help="names of cases; default: all")
    parser.add_argument("--tree", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--record", action="store_true", help="record what the file lacks")
    parser.add_argument("--data", type=Path, help="folder with the real digits and PACS")
    given = parser.parse_args()
    known: Facts = json.loads(given.facts.read_text()) if given.facts.exists() else {}
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        net = Net(given.tree.resolve(), Path(folder), given.data)
        for name, case in cases(net).items():
            if (given.cases and name not in given.cases) or given.record == (name in known):
                continue
            try:
                facts = json.loads(json.dumps(case()).replace(folder, "FOLDER"))
            except (subprocess.CalledProcessError, OSError, KeyError, StopIteration) as error:
                print(f"{name}: failed: {error}", flush=True)
                failures += 1
                continue
            if not given.record:
                problems = compare(known[name], facts)
                failures += bool(problems)
                lines = problems[:5] + [f"... and {len(problems) - 5} more"] * (len(problems) > 5)
                print(f"{name}: {'equal' if not problems else 'differs'}", *lines, sep="\n  ")
            else:
                known[name] = facts
                given.facts.write_text(json.dumps(known))
                print(f"{name}: recorded", flush=True)
            sys.stdout.flush()
    return min(1, failures)


if __name__ == "__main__":
    sys.exit(main())
