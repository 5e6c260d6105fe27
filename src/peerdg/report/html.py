"""Write a report as one HTML file, which opens without a network.

The page contains its style, its script, its data and all images. A content security policy in the
page allows nothing else, so names from files can neither run nor load anything.
"""

import base64
import hashlib
import importlib.util
import io
import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup, escape
from PIL import Image
from torch import Tensor

from peerdg import __version__
from peerdg.errors import ConfigError
from peerdg.evaluate.statistics import Difference
from peerdg.files import replace_atomically
from peerdg.report.table import ReportTable
from peerdg.terminal import visible

HTML = "report.html"
_SHADES = 10  # background colors of a confusion matrix
_FOREST = 300  # width of a forest plot in SVG units
_ROW = 22  # its height per row
_LOSSLESS = 48  # pixels up to which an image is stored without loss


def page_file(out: Path) -> Path:
    """Return the file of a page for `--out`, which may also be an existing folder."""
    file = out / HTML if out.is_dir() else out
    if file.suffix not in (".html", ".htm"):
        raise ConfigError(f"{out} is not a name for a page.", hint="Use a name like report.html.")
    return file


def write_html(path: Path, template: str, data: Mapping[str, Any], **content: Any) -> Path:
    """Render a template of this folder. `data` is JSON for the page's script."""
    text = render(template, data, **content)
    with replace_atomically(path) as temporary:
        temporary.write_text(text, "utf-8", newline="")
    return path


def render(
    template: str, data: Mapping[str, Any], *, connects: bool = False, **content: Any
) -> str:
    """Render a page. Only one that `connects` may load data from its own server."""
    scripts = [uplot("uPlot.iife.js"), _own("page.js")]
    style = uplot("uPlot.min.css") + _own("page.css")
    allowed = " ".join(map(_hash, scripts))
    policy = f"default-src 'none'; img-src data:; style-src {_hash(style)}; script-src {allowed}; "
    policy += f"connect-src {chr(39)}{'self' if connects else 'none'}{chr(39)}; "
    policy += "base-uri 'none'; form-action 'none'"
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return (
        _environment()
        .get_template(template)
        .render(
            policy=policy,
            style=style,
            scripts=scripts,
            data=text.replace("<", "\\u003c"),  # so that no name can end the script element
            version=__version__,
            **content,
        )
    )


@cache
def _environment() -> jinja2.Environment:
    def shown(value: Any) -> Any:
        return value if hasattr(value, "__html__") else visible(str(value))

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("peerdg", "report"),
        autoescape=True,
        finalize=shown,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["shade"] = lambda share: round(share * (_SHADES - 1))
    return environment


def _own(name: str) -> str:
    return files("peerdg.report").joinpath(name).read_text("utf-8")


@cache
def uplot(name: str = "uPlot.iife.js") -> str:
    """Read a file of uPlot from the package uplot-python, without importing the package."""
    found = importlib.util.find_spec("uplot")
    if found is None or found.origin is None:
        raise ConfigError(
            "Pages need the package uplot-python.", hint="pip install 'peerdg[report]'"
        )
    text = (Path(found.origin).parent / "static" / name).read_text("utf-8")
    return text.replace("\r\n", "\n")


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def picture(image: Tensor | Image.Image, side: int = 96) -> str:
    """Encode an image `[3, h, w]`, uint8 or float with 1.0 for white, as a data URI.

    Images larger than `side` are reduced.
    """
    if isinstance(image, Tensor):
        pixels = image if not image.is_floating_point() else image.float().clamp(0, 1) * 255
        image = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy().astype(np.uint8))
    image = image.convert("RGB")
    format, out = "png", io.BytesIO()
    if max(image.size) > _LOSSLESS:
        image.thumbnail((side, side), Image.Resampling.LANCZOS)
        format = "webp"
    image.save(out, format, optimize=True, quality=80)
    return data_uri(out.getvalue(), format)


def data_uri(content: bytes, format: str) -> str:
    """Encode the content of an image file as a data URI."""
    return f"data:image/{format};base64,{base64.b64encode(content).decode()}"


def forest(table: ReportTable) -> Markup | None:
    """Draw the paired difference of each row from the reference, with its interval, as SVG."""
    rows = [(row.label, row.difference) for row in table.rows if row.difference]
    if not rows:
        return None
    ends = [abs(value) for _, d in rows for value in _values(d)]
    scale = _FOREST / 2 / (max(ends) * 1.1 or 1)

    def x(value: float) -> str:
        return f"{_FOREST / 2 + scale * value:.1f}"

    width, height = _FOREST + 320, _ROW * len(rows) + 4
    parts = [f'<line class="zero" x1="{x(0)}" x2="{x(0)}" y1="0" y2="{height}"/>']
    for number, (label, d) in enumerate(rows):
        y = _ROW * number + _ROW // 2
        kind = "unclear" if not d.is_clear else "better" if d.mean > 0 else "worse"
        parts.append(f'<g class="{kind}">')
        if d.margin is not None:
            low, high = x(d.mean - d.margin), x(d.mean + d.margin)
            parts.append(f'<line x1="{low}" x2="{high}" y1="{y}" y2="{y}"/>')
        dots = "".join(f'<circle cx="{x(v)}" cy="{y}" r="2"/>' for v in d.by_seed.values())
        parts.append(f'{dots}<circle cx="{x(d.mean)}" cy="{y}" r="5"/>')
        text = f"{d.mean:+.1f}  {visible(label)}"
        parts.append(f'<text x="{_FOREST + 8}" y="{y + 4}">{escape(text)}</text></g>')
    title = f"Difference from {visible(table.reference)} in points, by row"
    return Markup(  # noqa: S704  (labels are escaped above)
        f'<svg class="forest" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{escape(title)}">{"".join(parts)}</svg>'
    )


def _values(d: Difference) -> list[float]:
    margin = d.margin or 0
    return [d.mean - margin, d.mean + margin, *d.by_seed.values()]
