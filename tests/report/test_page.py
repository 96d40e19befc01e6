"""The report: one safe, self-contained file that says what came of the run."""

import base64
import json
import re
from html.parser import HTMLParser

import pytest

from gspo.report import samples
from gspo.report.page import escape, write_report
from gspo.report.read import first_step, last_step
from gspo.runs.log import to_json
from tests.report.fake_run import make

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


def rollouts(folder, rows):
    with (folder / "rollouts.jsonl").open("wb") as file:
        file.writelines(map(to_json, rows))


def row(step, prompt, reward, completion="yes", **more):
    return {
        "step": step,
        "prompt": prompt,
        "completion": completion,
        "reward": reward,
        "token_ids": [1, 2],
    } | more


def test_the_headline_has_the_numbers(page):
    assert "Held-out accuracy 36 % → 88 % in 60 steps, " in page.text
    assert "95 % intervals 32–40 % and 85–91 %, on 512 prompts never trained on." in page.text
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


def test_chat_messages_are_shown_with_their_roles():
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"}]
    assert samples.prompt_text({"prompt": messages}) == "system: Be brief.\nuser: 2+2?"


def test_only_the_ends_of_a_large_file_are_read(tmp_path, monkeypatch):
    rows = [row(s, f"p{i}", 1.0, "x" * 20000) for s in range(1, 41) for i in range(8)]
    rollouts(tmp_path, rows)
    path = tmp_path / "rollouts.jsonl"
    assert first_step(path) == rows[:8] and last_step(path) == rows[-8:]
    with path.open("ab") as file:
        file.write(b'{"step": 41, "pro')  # killed here
    assert last_step(path) == rows[-8:]
    monkeypatch.setattr("gspo.report.read.MOST_BYTES", 50_000)  # a step larger than that is read in part
    assert first_step(path) == rows[:2] and last_step(path)[-1] == rows[-1]
    assert first_step(tmp_path / "none") == last_step(tmp_path / "none") == []
    path.write_bytes(b"")
    assert first_step(path) == last_step(path) == []


def test_before_and_after_show_the_same_prompt_and_a_median_completion():
    first = [row(1, "a b c", r, f"f{r}") for r in (0.0, 1.0, 0.0)] + [row(1, "x y", 1.0, "other")]
    last = [row(9, "q r", 0.0, "no"), row(9, "a b c", 1.0, "l1"), row(9, "a b c", None, "failed")]
    before, after = samples.choose_pair(first, last)
    assert (before["completion"], after["completion"]) == ("f0.0", "l1")
    assert samples.choose_pair(first, first) is None
    assert samples.choose_pair([], last) is None


def test_before_and_after_are_typical_of_their_time():
    """Most fail before and most succeed after: a prompt that fails twice, or a lucky first completion, is not shown."""
    rewards = {"a": (1, 1), "b": (0, 0), "c": (0, 1), "d": (0, 1), "e": (0, 1)}
    first = [row(0, f"q {p}", float(r), f"before {p}") for p, (r, _) in rewards.items()]
    last = [row(9, f"q {p}", float(r), f"after {p}") for p, (_, r) in rewards.items()]
    before, after = samples.choose_pair(first, last)
    assert (before["reward"], after["reward"]) == (0.0, 1.0)
    assert before["prompt"] == after["prompt"]


def test_tokens_are_coloured_by_their_log_ratio(tmp_path):
    assert [samples.shade(v, 1.0) for v in (-9.0, -0.5, 0.0, 0.1, 0.3, 1.0, None, float("nan"))] == [
        "d4", "d2", "", "", "u1", "u4", "", "",
    ]  # fmt: skip
    ratios = [1e-3, -1e-3, 0.0]
    rollouts(tmp_path, [row(1, "p", 1.0, tokens=["a", "b\n", "c"], log_ratio=ratios, logp=[-0.5, -1.0, -2.0])])
    html = samples.coloured(tmp_path / "rollouts.jsonl", escape)
    assert '<i class="u4" title="log-ratio +0.001, log-prob -0.5">a</i>' in html
    assert '<i class="d4" title="log-ratio -0.001, log-prob -1">b↵\n</i>' in html
    assert '<i class="" ' in html


def test_a_long_completion_loses_its_middle(tmp_path):
    n = samples.MOST_TOKENS + 7
    rollouts(tmp_path, [row(1, "p", 1.0, tokens=["t"] * n, log_ratio=[0.1] * n, logp=[-1.0] * n)])
    html = samples.coloured(tmp_path / "rollouts.jsonl", escape)
    assert html.count(">t</i>") == samples.MOST_TOKENS and "7 tokens left out" in html


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


def test_conversations_are_shown_turn_by_turn(tmp_path):
    messages = [
        {"role": "user", "content": "which <box>?"},
        {"role": "assistant", "content": "look a", "turn": 0, "reward": -0.02},
        {"role": "tool", "content": "nothing"},
        {"role": "assistant", "content": "made up", "left_out": "no answer of the policy"},
    ]
    tokens = {"tokens": ["look ", "a"], "log_ratio": [0.1, -0.1], "token_turns": [0, 0]}
    rollouts(tmp_path, [row(step, "which <box>?", 1.0, "look a", dialogue=messages, **tokens) for step in (1, 2)])
    shown = samples.before_and_after(tmp_path, escape)
    for text in (
        "turn 1, reward −0.02",
        "tool",
        "nothing",
        "left out: no answer of the policy",
        "which &lt;box&gt;?",
    ):
        assert text in shown, text
    assert shown.count('<div class="completion">look a</div>') == 2 and "<box>" not in shown
    shown = samples.coloured(tmp_path / "rollouts.jsonl", escape)
    assert "turn 1, trained, reward −0.02" in shown and ">look </i>" in shown and shown.count("nothing") == 1


def test_tokens_stand_in_the_turns_that_sampled_them(tmp_path):
    messages = [{"role": "assistant", "content": content, "turn": turn} for turn, content in enumerate("abc")]
    tokens = {"tokens": ["b", "a", "a"], "log_ratio": [0.1] * 3, "token_turns": [1, 0, 0]}
    rollouts(tmp_path, [row(1, "p", 1.0, dialogue=messages, **tokens)])
    shown = samples.coloured(tmp_path / "rollouts.jsonl", escape)
    first, second, third = shown.split('<p class="about">turn ')[1:]
    assert first.count(">a</i>") == 2 and second.count(">b</i>") == 1 and third.count("</i>") == 0
    assert first.startswith("1, trained") and third.startswith("3</p>")
