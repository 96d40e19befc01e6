"""HTML pages from jinja2 templates. What is inserted is escaped, and control characters become visible."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gspo.report.chart import Chart, layout
from gspo.safe import replace_file, visible

if TYPE_CHECKING:
    from jinja2 import Environment

PACKAGE = Path(__file__).parents[1]


def render(template: str, **values: Any) -> str:
    """A page that needs no other file, from a template below src/gspo and the values that it names. A value that is HTML
    already must be `markupsafe.Markup`. Of scripts, a browser runs report/page.js alone: the page has its checksum.
    Raises jinja2.UndefinedError for a value that is missing.
    """
    from markupsafe import Markup

    files = (PACKAGE / "report" / name for name in ("report.css", "chart.css", "page.js"))
    css, chart_css, script = (Markup(file.read_text(encoding="utf-8")) for file in files)
    checksum = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return _environment(PACKAGE).get_template(template).render(
        {"live": False, "css": css, "chart_css": chart_css, "script": script, "checksum": f"sha256-{checksum}"},
        layout=layout, **values,
    )  # fmt: skip


@cache
def _environment(package: Path) -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    return Environment(
        loader=FileSystemLoader(package),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else visible(value),
    )


def write_figures(charts: Sequence[Chart], folder: Path, prefix: str = "") -> None:
    """Writes each figure as an SVG file for light and dark pages."""
    for chart in charts:
        write_page(folder / f"{prefix}{chart.name}.svg", "report/templates/figure.svg", chart=chart)


def write_page(path: Path, template: str, **values: Any) -> None:
    """Writes a page, as `render` makes it."""
    replace_file(path, render(template, **values).encode())
