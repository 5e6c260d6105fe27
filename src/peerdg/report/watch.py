"""Show the runs below a folder as they train, on a page from a local server."""

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from peerdg.errors import ConfigError, PeerdgError
from peerdg.files import reading
from peerdg.report.curves import curves
from peerdg.report.html import render
from peerdg.report.runs import RunResult, read_run
from peerdg.run.folder import RunFolder
from peerdg.run.progress import duration, summarize
from peerdg.terminal import visible

HOST = "127.0.0.1"
PHASES = ("pretrain", "train")
_TAIL = 3  # lines of a log
_RECENT = 5  # epochs to estimate the time left from


Row = dict[str, str]  # what the page lists of a run


class Watched:
    """The runs below a folder. Only changed ones are read again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[Path, tuple[list[tuple[int, int]], Row, RunResult | None]] = {}

    def data(self) -> dict[str, Any]:
        """Read the state and curves of all runs."""
        rows, shown = [], {}
        for file in sorted(self.folder.rglob("config.toml")):
            if not (file.parent / "events.jsonl").exists():
                continue
            name = visible(str(file.parent.relative_to(self.folder)))
            name = file.parent.name if name == "." else name
            row, run = self._read(file.parent)
            rows.append({"run": name, **row})
            if run is not None and run.evaluations:
                shown[name] = [run]
        return {"runs": rows, **curves(shown)}

    def _read(self, path: Path) -> tuple[Row, RunResult | None]:
        files = [path / name for name in ("metrics.jsonl", "events.jsonl", "done.json", "run.lock")]
        stamp = [(f.stat().st_size, f.stat().st_mtime_ns) for f in files if f.exists()]
        known = self._known.get(path)
        if known is None or known[0] != stamp or known[1]["status"] == "running":
            try:
                with reading(path):
                    run = read_run(path)
                    known = stamp, _row(run), run
            except PeerdgError as error:
                known = stamp, {"status": "unreadable", "log": visible(error.message)}, None
            self._known[path] = known
        return known[1:]


def _row(run: RunResult) -> Row:
    planned = {phase: int(run.config.get(phase, {}).get("epochs", 0)) for phase in PHASES}
    phase = run.epochs[-1]["phase"] if run.epochs else "pretrain"
    done = run.epochs[-1]["epoch"] if run.epochs else 0
    events = RunFolder(run.path).events.read()
    per_epoch, left = seconds_per_epoch(events), ""
    if run.status == "running" and per_epoch is not None:
        left = duration((planned[phase] - done) * per_epoch)
    accuracy = summarize(run.final(run.deployed)) if run.evaluations else []
    log = run.path / "log.txt"  # written by a bench
    lines = log.read_text("utf-8", "replace").splitlines() if log.exists() else _events(events)
    return {
        "status": run.status,
        "progress": f"{phase} {done}/{planned[phase]}",
        "left": left,
        "accuracy": visible(", ".join(f"{domain} {value:.1f}" for domain, value in accuracy)),
        "log": "\n".join(map(visible, lines[-_TAIL:])),
    }


def seconds_per_epoch(events: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the recent time per epoch of the main phase, with evaluations."""
    starts = [n for n, event in enumerate(events) if event["event"] in ("start", "resume")]
    since = events[starts[-1] :] if starts else events  # without the time of an interruption
    epochs = (e for e in since if e["event"] == "epoch" and e["phase"] == "train")
    times = [datetime.fromisoformat(event["time"]) for event in epochs]
    recent = times[-_RECENT:]
    if len(recent) < 2:
        return None
    return (recent[-1] - recent[0]).total_seconds() / (len(recent) - 1)


def _events(events: Sequence[Mapping[str, Any]]) -> list[str]:
    """Describe the events of a run other than its epochs."""
    others = [event for event in events if event["event"] != "epoch"]
    return [f"{e['time']} {e['event']} {e.get('message', '')}" for e in others]


class WatchServer(ThreadingHTTPServer):
    """A read-only server for this machine. It has two addresses: the page and its data."""

    def __init__(self, folder: Path, port: int) -> None:
        self.watched = Watched(folder)
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"Port {port} cannot be used: {error}.", hint="Choose another --port, or 0."
            ) from error

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: WatchServer

    def do_GET(self) -> None:
        # Other names would let web pages read the runs by DNS rebinding. Another port is that of a
        # tunnel to this machine.
        if self.headers.get("Host", "").partition(":")[0] not in (HOST, "localhost"):
            self.send_error(HTTPStatus.FORBIDDEN)
            return
        watched = self.server.watched
        pages: dict[str, tuple[str, Callable[[], str]]] = {
            "/": ("text/html", lambda: _page(watched)),
            "/data.json": ("application/json", lambda: json.dumps(watched.data())),
        }
        if self.path not in pages:
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        kind, make = pages[self.path]
        content = make().encode()
        with contextlib.suppress(ConnectionError):  # the tab was closed
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, format: str, *values: Any) -> None:
        """Print nothing."""


def _page(watched: Watched) -> str:
    title = f"Runs in {watched.folder.absolute().name}"
    return render("watch.html.jinja", watched.data(), connects=True, title=title)
