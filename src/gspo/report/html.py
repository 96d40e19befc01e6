"""HTML pages from jinja2 templates. What is inserted is escaped, and control characters become visible."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gspo.safe import replace_file, visible

if TYPE_CHECKING:
    from gspo.report.plots import Drawn

PACKAGE = Path(__file__).parents[1]


def write_page(path: Path, template: str, **values: Any) -> None:
    """Writes a page that needs no other file, from a template below src/gspo and the values that it names. A value that is
    HTML already must be `markupsafe.Markup`. Raises jinja2.UndefinedError for a value that is missing.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(PACKAGE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else visible(value),
    )
    css = Markup((PACKAGE / "report" / "report.css").read_text(encoding="utf-8"))
    page = environment.get_template(template).render(css=css, data_of=data_of, **values)
    replace_file(path, page.encode())


def data_of(drawn: Drawn) -> tuple[str, str]:
    """A figure's light and dark rendering as data URLs."""
    light, dark = (base64.b64encode(path.read_bytes()).decode() for path in (drawn.light, drawn.dark))
    return f"data:image/png;base64,{light}", f"data:image/png;base64,{dark}"
