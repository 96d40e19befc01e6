"""The report: one safe, self-contained file that says what came of the run."""

import base64
import json
import re
from html.parser import HTMLParser

import pytest

from gspo.report.page import escape, write_report
from tests.report.fake_run import make
from tests.report.rows import rollouts, row

EVIL = "</div><script>alert(1)</script><img src=x onerror=alert(1)> \x00\x1b[31m & \"quoted\" 'too' \ud83d"


class Page(HTMLParser):
    """Checks that tags are closed in order, and collects tags, attributes and text."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.links, self.text = [], [], [], ""
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.links += [v for k, v in attrs if k in ("src", "href", "srcset")]
        assert not [k for k, _ in attrs if k.startswith("on")]
        if tag not in ("meta", "img", "source", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data.replace("\u00a0", " ")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make(tmp_path_factory.mktemp("runs") / "demo", warnings=("an odd clip range <b>",))


@pytest.fixture(scope="module")
def page(run):
    return Page(write_report([run]).read_text())


def test_the_headline_has_the_numbers(page):
    assert "Held-out accuracy 36 % → 88 % in 60 steps, " in page.text
    assert "95 % intervals 32–40 % and 85–91 %, on 512 prompts never trained on." in page.text
    assert "In the last evaluation 3 completions were not scored; they count as wrong." in page.text
    assert re.search(r"\d+ % of the tokens were clipped", page.text)
    assert "Watched: worked46 % → 98 %first and last evaluation" in page.text


def test_it_needs_nothing_else(page):
    assert len(page.links) == 30  # 15 figures, light and dark
    for link in page.links:
        kind, data = link.split(",", 1)
        assert kind == "data:image/png;base64" and base64.b64decode(data).startswith(b"\x89PNG")
    assert {"script", "link", "iframe"}.isdisjoint(page.tags)


def test_dark_and_phone_are_provided_for(run):
    html = (run / "report.html").read_text()
    assert html.count('<source media="(prefers-color-scheme: dark)"') == 15
    assert "@media (prefers-color-scheme: dark)" in html and 'name="viewport"' in html
    assert not re.search(r"https?://", html)


def test_it_shows_warnings_configuration_and_samples(page):
    texts = ("an odd clip range <b> (step 0)", "epsilon_high = 0.0004", "Before: step 1", "After: step 60")
    for text in (*texts, "Completions of step 60, token by token"):
        assert text in page.text


def test_a_drop_and_a_change_by_chance_are_said(tmp_path):
    def text(low, high, name):
        folder = tmp_path / name
        folder.mkdir()
        lines = [
            {"step": s, "eval/accuracy": a, "eval/accuracy_low": a - 0.05, "eval/accuracy_high": a + 0.05}
            for s, a in enumerate((low, high))
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return Page(write_report([folder]).read_text()).text

    assert "The intervals overlap: the change may be chance." in text(0.5, 0.55, "a")
    assert "Accuracy fell." in text(0.5, 0.2, "b")
    assert "overlap" not in text(0.2, 0.5, "c")


def test_a_cold_start_and_an_unfinished_run(tmp_path):
    folder = tmp_path / "sft"
    folder.mkdir()
    (folder / "config.toml").write_text("[train]\nsteps = 9\n")
    (folder / "metrics.jsonl").write_text('{"step": 1, "loss": 3.0, "time/train": 2.0}\n{"step": 2, "loss": 0.5}\n')
    text = Page(write_report([folder]).read_text()).text
    assert "Loss 3.000 → 0.500 in 2 steps, 2.0 s" in text and "Not finished: 2 of 9 steps." in text


def test_a_served_run_has_no_number_of_steps_to_reach(tmp_path):
    (tmp_path / "config.toml").write_text("[train]\nsteps = 9\n")
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "reward": 1.0, "turns/trained": 4.0}\n')
    assert "Not finished" not in write_report([tmp_path]).read_text()


def test_what_the_model_writes_cannot_become_markup(tmp_path):
    folder = make(tmp_path / "run", steps=2, warnings=(EVIL,), name="</pre><script>alert(1)</script>")
    rollouts(
        folder,
        [row(s, EVIL, 1.0, EVIL, tokens=[EVIL, "b"], log_ratio=[0.1, None], logp=[-1.0, None], error=EVIL)
         for s in (1, 2)],
    )  # fmt: skip
    page = Page(write_report([folder]).read_text())
    assert "script" not in page.tags and page.tags.count("img") == 15
    assert page.text.count("<script>alert(1)</script>") >= 6
    assert "\x00" not in page.text and "\x1b" not in page.text and escape("\x1b") == "␛"


def test_several_runs_have_a_table_and_leave_the_reports_alone(run, tmp_path):
    second = make(tmp_path / "grpo", steps=20, seed=1, gain=0.2, name="grpo", warnings=("second",))
    before = (run / "report.html").read_bytes()
    path = write_report([run, second])
    assert path == run / "comparison.html" and (run / "report.html").read_bytes() == before
    page = Page(path.read_text())
    assert "2 runs compared" in page.text and page.tags.count("tr") == 3
    assert "second (grpo, step 0)" in page.text and "Configuration of grpo" in page.text
    assert len(page.links) == 30


def test_no_runs_and_no_metrics(tmp_path):
    with pytest.raises(ValueError, match="name at least one run folder"):
        write_report([])
    with pytest.raises(ValueError, match=r"no metrics\.jsonl"):
        write_report([tmp_path])
