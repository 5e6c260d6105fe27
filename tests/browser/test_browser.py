"""Pages in a real browser: `make test-browser`. It needs Chromium, playwright and axe-core."""

import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import peerdg
from peerdg.cli.main import run as command
from peerdg.report.pages import write_runs_page
from peerdg.report.runs import read_run
from peerdg.report.watch import WatchServer
from tests.conftest import tiny_classifier, tiny_splits
from tests.report.made import GROUPS

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium")
AXE = Path(__file__).parents[2] / "build/axe/node_modules/axe-core/axe.min.js"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync",
         "--no-first-run", "--disable-component-update"]  # fmt: skip

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed"),
]


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        made = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield made
        made.close()


def digits_run(out: Path, *, epochs: int = 3) -> list[str]:
    return ["train", "digits-mini", "--method", "peer", "--budget", "quick", "--peer.k", "1",
            "--digits-mini.train", "300", "--pretrain.epochs", "1", "--epochs", str(epochs),
            "--crafted-images", "30", "--out", str(out), "--quiet"]  # fmt: skip


@pytest.fixture(scope="module")
def pages(tmp_path_factory) -> dict[str, Path]:
    """A page about one run with images, and one about several runs."""
    folder = tmp_path_factory.mktemp("pages")
    assert command([*digits_run(folder / "run"), "--report"], debug=True) == 0
    runs = [run for group in GROUPS.values() for run in group]
    several = write_runs_page(runs, folder / "several.html", groups=GROUPS)
    return {"one": folder / "run/report.html", "several": several}


class Visit:
    """A page in a tab. It records messages of the console, and requests."""

    def __init__(self, browser, address: str, *, width: int = 1280, dark: bool = False) -> None:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
        )
        self.page = context.new_page()
        self.said: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.requested.append(request.url))
        self.requested: list[str] = []
        self.page.goto(address)
        self.page.wait_for_selector(".u-over")

    def lit(self) -> int:
        """Count the colored pixels of the first chart."""
        return self.page.evaluate(
            """() => {
                const canvas = document.querySelector("canvas"), {width, height} = canvas;
                const {data} = canvas.getContext("2d").getImageData(0, 0, width, height);
                let count = 0;
                for (let i = 0; i < data.length; i += 4) {
                    const color = data.slice(i, i + 3);
                    count += Math.max(...color) - Math.min(...color) > 60;
                }
                return count;
            }"""
        )


@pytest.mark.parametrize("name", ["one", "several"])
def test_a_page_opens_without_a_message_or_a_request(browser, pages, name):
    address = pages[name].as_uri()
    visit = Visit(browser, address)
    visit.page.wait_for_timeout(300)
    assert visit.said == []
    assert [url for url in visit.requested if not url.startswith("data:")] == [address]
    assert visit.lit() > 100


@pytest.mark.parametrize("name", ["one", "several"])
def test_a_phone_needs_no_scrolling_to_the_side(browser, pages, name):
    page = Visit(browser, pages[name].as_uri(), width=390).page
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_hovering_shows_the_values_of_an_epoch(browser, pages):
    page = Visit(browser, pages["several"].as_uri()).page
    page.locator(".u-over").first.scroll_into_view_if_needed()
    box = page.locator(".u-over").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    said = page.locator(".readout").first.inner_text()
    epoch, values = re.fullmatch(r"epoch (\d+): (.*)", said).groups()
    shown = dict(re.findall(r"(?:^|, )([\w-]+) [\w-]+ ([\d.]+) %", values))
    runs = GROUPS["erm"]
    records = [r["accuracy"] for run in runs for r in run.evaluations
               if (r["domain"], r["epoch"]) == (runs[0].targets[0], int(epoch))]  # fmt: skip
    assert float(shown["erm"]) == pytest.approx(sum(records) / len(records), abs=0.06)


def test_curves_are_switched_off_and_on_by_mouse_and_keyboard(browser, pages):
    visit = Visit(browser, pages["several"].as_uri())
    before, buttons = visit.lit(), visit.page.locator("#controls button")
    button = buttons.first
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    fewer = visit.lit()
    assert 0 < fewer < before
    button.focus()
    visit.page.keyboard.press("Enter")
    assert button.get_attribute("aria-pressed") == "true"
    assert visit.lit() == before


def test_dragging_zooms_in_all_charts_and_a_button_resets(browser, pages):
    page = Visit(browser, pages["several"].as_uri()).page
    over = page.locator(".u-over").first
    over.scroll_into_view_if_needed()
    before = page.locator("canvas").first.screenshot()
    box = over.bounding_box()
    page.mouse.move(box["x"] + 40, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 140, box["y"] + 60, steps=5)
    page.mouse.up()
    page.mouse.move(0, 0)
    page.wait_for_timeout(200)
    zoomed = page.locator("canvas").first.screenshot()
    assert zoomed != before
    for scheme in ("dark", "light"):  # draws all charts again
        page.emulate_media(color_scheme=scheme)
        page.wait_for_timeout(200)
    assert page.locator("canvas").first.screenshot() == zoomed
    page.get_by_role("button", name="Reset zoom").click()
    page.mouse.move(0, 0)
    page.wait_for_timeout(200)
    assert page.locator("canvas").first.screenshot() == before


def test_dark_mode_changes_paper_and_curves(browser, pages):
    light, dark = (Visit(browser, pages["one"].as_uri(), dark=d).page for d in (False, True))
    paper = "getComputedStyle(document.body).backgroundColor"
    assert light.evaluate(paper) != dark.evaluate(paper)
    assert light.locator("canvas").first.screenshot() != dark.locator("canvas").first.screenshot()


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not installed")
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", ["one", "several"])
def test_a_page_is_accessible(browser, pages, name, dark):
    """Text alternatives, contrast, order of headings, names of controls."""
    scheme = "dark" if dark else "light"
    page = browser.new_context(bypass_csp=True, color_scheme=scheme).new_page()
    page.goto(pages[name].as_uri())
    page.wait_for_selector(".u-over")
    page.evaluate("document.querySelectorAll('details').forEach(each => (each.open = true))")
    page.add_script_tag(path=AXE)
    found = page.evaluate("axe.run()")["violations"]
    assert [(v["id"], v["nodes"][0]["html"][:200]) for v in found] == []


@pytest.fixture
def watched(tmp_path) -> Iterator[tuple[WatchServer, Path]]:
    with WatchServer(tmp_path, 0) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server, tmp_path
        server.shutdown()
        thread.join()


def test_a_watched_run_grows(browser, watched):
    server, folder = watched
    peerdg.fit(
        tiny_splits(), method="erm", model=tiny_classifier(), out=folder / "first", progress=False,
        train={"epochs": 2, "batch_size": 8}, pretrain={"epochs": 0}, crafted="off",
    )  # fmt: skip
    visit = Visit(browser, server.address)
    visit.page.wait_for_selector("text=1 runs, 0 in training")
    words = [sys.executable, "-m", "peerdg", *digits_run(folder / "second", epochs=6)]
    training = subprocess.Popen(words)
    visit.page.wait_for_selector("td:text-is('running')", timeout=60_000)
    visit.page.wait_for_selector("button:has-text('second')", timeout=60_000)
    training.wait()
    visit.page.wait_for_selector("text=train 6/6", timeout=30_000)
    assert read_run(folder / "second").status == "done"
    assert visit.said == []
    assert {url.rpartition("/")[2] for url in visit.requested} == {"", "data.json"}
