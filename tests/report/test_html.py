"""Pages from templates: nothing that is inserted is markup, and nothing is left out unseen."""

import base64
import hashlib

import jinja2
import pytest
from markupsafe import Markup

from gspo.report import html


def test_what_is_inserted_is_escaped_and_control_characters_are_visible(tmp_path, monkeypatch):
    monkeypatch.setattr(html, "PACKAGE", tmp_path)
    (tmp_path / "report").mkdir()
    for name in ("report.css", "chart.css", "page.js"):
        (tmp_path / "report" / name).write_text(f"/* <{name}> */")
    (tmp_path / "page.html").write_text("{{ css }}{{ chart_css }}{{ script }}{{ text }}|{{ made }}|{{ count }}")
    html.write_page(tmp_path / "out.html", "page.html", text="<b>\x1b&", made=Markup("<i>"), count=3)
    files = "/* <report.css> *//* <chart.css> *//* <page.js> */"
    assert (tmp_path / "out.html").read_text() == files + "&lt;b&gt;\\x1b&amp;|<i>|3"
    with pytest.raises(jinja2.UndefinedError, match="'count' is undefined"):
        html.write_page(tmp_path / "out.html", "page.html", text="", made="")


def test_the_checksum_is_that_of_the_script_as_browsers_compute_it():
    page = html.render("report/templates/base.html", title="t")
    script = page.split("<script>")[1].split("</script>")[0]
    checksum = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{checksum}'" in page and "default-src 'none'" in page and "connect-src" not in page
    assert page.count("</script") == 1
