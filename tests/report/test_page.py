"""The report: one safe, self-contained file that says what came of the run."""

import json
import re
import tomllib
from contextlib import nullcontext, suppress
from html.parser import HTMLParser

import pytest
import tomli_w

from gspo.report.page import reported, write_report
from gspo.report.read import read_run
from tests.report.drawing import write
from tests.report.fake_run import make
from tests.report.rows import row


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
        if tag not in ("meta", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data.replace("\u00a0", " ")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make(tmp_path_factory.mktemp("runs") / "demo", warnings=("an odd clip range <b>",))


@pytest.fixture(scope="module")
def html(run):
    return write_report([run]).read_text()


@pytest.fixture(scope="module")
def page(html):
    return Page(html)


TOLD = (
    "Held-out accuracy 36 % → 88 % in 60 steps, ", "on 512 prompts never trained on.", " % of the tokens were clipped",
    "In the last evaluation 3 completions were not scored; they count as wrong, and not in the reward.",
    "Watched: worked46 % → 98 %first and last evaluation", "Rose by 52.0 points [47.0, 57.0], more than chance explains.",
    "Of the 24 training completions of step 60 that were logged, ", "an odd clip range <b> (step 0)", "Before: step 1",
    "After: step 60", "Completions of step 60, token by token", "Both are typical: their", "epsilon_high = 0.0004",
)  # fmt: skip


def test_it_shows_the_headline_judgements_warnings_configuration_and_samples(page):
    assert [text for text in TOLD if text not in page.text] == []


def test_it_needs_nothing_else_and_is_for_dark_pages_and_phones_too(run, page, html):
    assert page.tags.count("figure") == len(list((run / "figures").glob("*.svg"))) == 15
    assert not page.links and {"link", "iframe", "img"}.isdisjoint(page.tags) and page.tags.count("script") == 1
    assert "@media (prefers-color-scheme: dark)" in html and 'name="viewport"' in html
    assert not re.search(r"https?://", html) and "connect-src" not in html and 'id="state"' not in html


def test_the_right_answers_have_a_column_if_there_are_any(html, talked):
    for page, names in ((html, 0), (write_report([talked]).read_text(), 1)):
        head, _, body = page[page.index('<table id="completions">') :].partition("</thead>")
        assert head.count("<th>right answer</th>") == names
        assert body[: body.index("</tr>")].count("<td") == head.count("<th") - 1 == 7 + names  # but for thead


def test_the_page_of_100_000_rollouts_is_small_and_has_the_newest_of_either_kind(tmp_path):
    folder = write(tmp_path / "run", [{"step": s, "reward": 0.5, "kl": 1e-4 * (s % 7)} for s in range(1, 10_001)])
    with (folder / "rollouts.jsonl").open("w") as file:
        for length, numbers in ((20, range(98_000)), (1000, range(98_000, 100_000))):
            line = json.dumps(row(-1, "p" * length, -2, "c" * 2 * length)).replace("-1", "%d").replace("-2", "%d") + "\n"
            file.writelines(line % (1 + i // 10, i % 10 == 0) for i in numbers)
    html = write_report([folder]).read_text()
    assert html.count('<tr data-right="True"') == html.count('<tr data-right="False"') == 100
    assert html.index('data-right="False" data-step="10000"') < html.index('data-right="True" data-step="10000"')
    assert len(html) < 1_500_000 and html.count("characters left out") >= 400


def test_an_unfinished_cold_start_and_a_served_run_which_has_no_number_of_steps_to_reach(tmp_path):
    sft = write(tmp_path / "sft", [{"step": 1, "loss": 3.0, "time/train": 2.0}, {"step": 2, "loss": 0.5}])
    served = write(tmp_path / "served", [{"step": 1, "reward": 1.0, "turns/trained": 4.0}])
    for folder in (sft, served):
        (folder / "config.toml").write_text("[train]\nsteps = 9\n")
    text, other = (Page(write_report([folder]).read_text()).text for folder in (sft, served))
    assert "Supervised fine-tuning: loss 3.000 → 0.500 in 2 steps, 2.0 s" in text and "Not finished: 2 of 9 steps." in text
    assert "Not finished" not in other and "rewards of the trajectories" in other


def test_a_run_without_metrics_says_why(tmp_path):
    (tmp_path / "events.jsonl").write_text('{"step": 1, "kind": "error", "text": "RuntimeError: no memory"}\n')
    with pytest.raises(ValueError, match=r"no metrics\.jsonl.* failed before its first step: RuntimeError: no memory$"):
        write_report([tmp_path])


ODD = """<script>x</script>"'&$\\frac{$\x1b"""


def with_odd_texts(value):
    """Each text replaced by ODD, and beside each key another one with ODD in it."""
    if isinstance(value, dict):
        changed = {key: with_odd_texts(item) for key, item in value.items()}
        return changed | {key + ODD: item for key, item in changed.items()}
    if isinstance(value, list):
        return [with_odd_texts(item) for item in value]
    return ODD if isinstance(value, str) else value


@pytest.fixture
def talked(tmp_path):
    """A run with evaluations, conversations, right answers, a warning and an error."""
    folder = make(tmp_path / "run", steps=2, warnings=("careful",))
    said = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a", "turn": 0, "reward": 0.5, "left_out": "w"},
    ]
    more = {"answer": "42", "error": "e", "stop": "stop", "advantage": 0.5}
    tokens = {"tokens": ["a", "b"], "logp": [-1.0, -2.0], "log_ratio": [0.1, -0.1], "token_turns": [0, 0]}
    for name in ("rollouts.jsonl", "evaluations.jsonl"):
        lines = [row(step, "q", 1.0, dialogue=said, **more, **tokens) for step in (1, 2)]
        lines += [row(step, [{"role": "user", "content": "q"}], 0.0, **more, **tokens) for step in (1, 2)]
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    with (folder / "events.jsonl").open("a") as file:
        file.write(json.dumps({"step": 2, "kind": "error", "text": ODD}) + "\n")
        file.write(json.dumps({"step": 2, "kind": "warning", "text": ODD}) + "\n")
    return folder


def test_no_text_and_no_key_of_any_file_reaches_the_page_raw(talked):
    for name in ("metrics.jsonl", "rollouts.jsonl", "evaluations.jsonl", "events.jsonl"):
        rows = [json.loads(line) for line in (talked / name).read_text().splitlines()]
        (talked / name).write_text("".join(f"{json.dumps(each)}\n" for row in rows for each in (row, with_odd_texts(row))))
    (talked / "config.toml").write_text(tomli_w.dumps(with_odd_texts(tomllib.loads((talked / "config.toml").read_text()))))
    folder = talked.rename(talked.with_name("run<script>x"))
    html = write_report([folder]).read_text()
    page = Page(html)
    assert html.count("<script") == 1 and "\x1b" not in html and page.tags.count("script") == 1
    shown = ODD.replace("\x1b", "\\x1b")
    assert page.text.count(shown) > 10
    for text in ("Right answer: " + shown, "turn 1, reward +0.50, left out: " + shown, f"{shown} (reported only in step 2)"):
        assert text in page.text
    again = Page(write_report([folder, folder]).read_text())
    assert again.tags.count("script") == 1 and shown in again.text


def test_secrets_are_not_shown(talked):
    secret = "[task]\nconfig = {api_key = 'sk-1', url = 'http://me:word@host'}\n"
    (talked / "config.toml").write_text(secret)
    assert "sk-1" not in (html := write_report([talked]).read_text()) and "word@host" not in html
    assert html.count("&lt;hidden&gt;") == 2
    (talked / "config.toml").write_text(secret + "half a")  # what cannot be read may be anything
    assert "sk-1" not in write_report([talked]).read_text()


def test_a_page_without_evaluations_or_of_a_failed_or_collapsed_run(talked):
    """No chart stands alone, and nothing is claimed of what was not measured."""
    lines = [{k: v for k, v in line.items() if not k.startswith("eval/")} for line in read_run(talked).lines]
    (talked / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    html = write_report([talked]).read_text()
    first = html[html.index('<div class="figures first">') :].split("</div>")[0]
    assert first.count("<figure ") == 2
    assert "<title>run: Failed after 2 steps</title>" in html and "Nothing was evaluated" in html
    assert '<div class="failure">&lt;script&gt;' in html
    events = '{"step": 2, "kind": "collapse", "text": "the mean reward fell from <b>.9 to .1"}\n'
    (talked / "events.jsonl").write_text(events)
    html = write_report([talked]).read_text()
    assert '<div class="failure">the mean reward fell from &lt;b&gt;.9 to .1</div>' in html


def test_a_run_that_an_error_ended_is_reported_and_the_error_goes_on(run, tmp_path, monkeypatch):
    class GoesOn(Exception):
        pass

    for error, but, written in (
        (KeyboardInterrupt(), (GoesOn,), True),
        (GoesOn(), (GoesOn, KeyboardInterrupt), False),
        (None, (GoesOn,), True),
    ):
        (run / "report.html").unlink(missing_ok=True)
        with suppress(type(error)) if error else nullcontext(), reported(*but) as folders:
            folders.append(run)
            if error:
                raise error
        assert (run / "report.html").exists() == written
    monkeypatch.setattr("gspo.report.page.write_report", lambda folders: 1 / 0)
    with pytest.raises(RuntimeError, match="of the run"), reported() as folders:
        folders.append(run)
        raise RuntimeError("of the run")


def test_several_runs_have_a_table_and_leave_the_reports_alone(run, tmp_path):
    second = make(tmp_path / "grpo", steps=20, seed=1, gain=0.2, name="grpo", warnings=("second",))
    before = write_report([run]).read_bytes()
    path = write_report([run, second])
    assert path == run / "comparison.html" and (run / "report.html").read_bytes() == before
    page = Page(path.read_text())
    assert "2 runs compared" in page.text and page.tags.count("tr") == 3 and page.tags.count("figure") == 15
    assert "grpo: second (step 0)" in page.text and "Configuration of grpo" in page.text
    assert (run / "figures" / "compare-reward.svg").exists() and not page.links
