"""Pages from templates: nothing that is inserted is markup, and nothing is left out unseen."""

import jinja2
import pytest
from markupsafe import Markup

from gspo.report import html


def test_what_is_inserted_is_escaped_and_control_characters_are_visible(tmp_path, monkeypatch):
    monkeypatch.setattr(html, "PACKAGE", tmp_path)
    (tmp_path / "report").mkdir()
    (tmp_path / "report" / "report.css").write_text("p { color: red }")
    (tmp_path / "page.html").write_text("<style>{{ css }}</style>{{ text }}|{{ made }}|{{ count }}")
    html.write_page(tmp_path / "out.html", "page.html", text="<b>\x1b&", made=Markup("<i>"), count=3)
    assert (tmp_path / "out.html").read_text() == "<style>p { color: red }</style>&lt;b&gt;\\x1b&amp;|<i>|3"
    with pytest.raises(jinja2.UndefinedError, match="'count' is undefined"):
        html.write_page(tmp_path / "out.html", "page.html", text="", made="")
