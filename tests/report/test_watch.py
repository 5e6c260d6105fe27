"""The live page: it shows runs as they are, and only to this machine."""

import html
import http.client
import json
import threading
from pathlib import Path

import pytest

import peerdg
from peerdg.cli.main import run as command
from peerdg.errors import ConfigError
from peerdg.report.watch import Watched, WatchServer, seconds_per_epoch
from tests.conftest import tiny_classifier, tiny_splits


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    """A finished run, one that was stopped, and a damaged one."""
    place = tmp_path_factory.mktemp("runs")
    for name in ("done", "group/stopped", "damaged"):
        peerdg.fit(
            tiny_splits(), method="erm", model=tiny_classifier(), out=place / name, progress=False,
            train={"epochs": 2, "batch_size": 8}, pretrain={"epochs": 0}, crafted="off",
        )  # fmt: skip
    (place / "group/stopped/done.json").unlink()
    (place / "group/stopped/log.txt").write_text("one\n\x1b[31mtwo\n")
    (place / "damaged/metrics.jsonl").write_text("{")
    return place


@pytest.fixture
def server(runs):
    with WatchServer(runs, 0) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def ask(server: WatchServer, path: str, *, host: str | None = None, method: str = "GET"):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port)
    connection.request(method, path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_the_time_left_ignores_interruptions():
    def event(kind: str, time: str, **values: str) -> dict[str, str]:
        return {"event": kind, "time": f"2026-01-{time}:00+00:00", **values}

    events = [event("start", "01T10:00"), event("epoch", "01T10:10", phase="train")]
    assert seconds_per_epoch(events) is None
    events.append(event("epoch", "01T10:20", phase="train"))
    assert seconds_per_epoch(events) == 600
    events += [event("stop", "01T10:25"), event("resume", "03T08:00")]
    events += [event("epoch", f"03T08:0{n}", phase="train") for n in (1, 2, 3)]
    assert seconds_per_epoch(events) == 60


def test_all_runs_are_shown_with_their_state(runs):
    data = Watched(runs).data()
    rows = {row["run"]: row for row in data["runs"]}
    assert {name: row["status"] for name, row in rows.items()} == {
        "damaged": "unreadable", "done": "done", "group/stopped": "resumable"
    }  # fmt: skip
    assert rows["done"]["progress"] == "train 2/2"
    assert rows["group/stopped"]["log"] == "one\n\\x1b[31mtwo"
    shown = {series["row"] for chart in data["charts"] for series in chart["series"]}
    assert shown == {"done", "group/stopped"}


def test_a_run_that_changes_is_read_again(runs, tmp_path):
    watched = Watched(tmp_path)
    assert watched.data()["runs"] == []
    copied = tmp_path / "copy"
    copied.mkdir()
    for file in (runs / "done").iterdir():
        if file.is_file():
            (copied / file.name).write_bytes(file.read_bytes())
    assert watched.data()["runs"][-1]["status"] == "done"
    (copied / "done.json").unlink()
    assert watched.data()["runs"][-1]["status"] == "resumable"


def test_the_server_gives_the_page_and_its_data(server):
    status, page = ask(server, "/")
    assert status == 200 and "connect-src 'self'" in html.unescape(page)
    status, data = ask(server, "/data.json")
    assert status == 200 and len(json.loads(data)["runs"]) == 3


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
def test_other_hosts_are_refused(server, host):
    assert ask(server, "/data.json", host=host)[0] == 403


@pytest.mark.parametrize(
    "path", ["/done/config.toml", "/../../etc/passwd", "/data.json?x", "/data"]
)
def test_nothing_else_is_served(server, path):
    assert ask(server, path)[0] == 404


def test_nothing_can_be_sent(server):
    assert ask(server, "/", method="POST")[0] == 501


def test_a_port_in_use_is_named(server, runs):
    with pytest.raises(ConfigError, match=str(server.server_port)):
        WatchServer(runs, server.server_port)


def test_a_missing_folder_is_refused(tmp_path):
    assert command(["watch", str(tmp_path / "none")], debug=False) == 2
