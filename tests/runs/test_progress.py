"""The progress view: plain lines away from a terminal, a live view on one, warnings above it."""

import builtins
import io
import math
import os
import pty
import re
import subprocess
import sys

import pytest
from rich.cells import cell_len
from rich.console import Console

from gspo.runs.progress import Progress, clock, sparkline
from tests.patience import PATIENCE

METRICS = {"reward": 0.5, "clip_ratio/region_mean": 0.15, "completions/mean_length": 44.4, "tokens_per_second": 9000.0}


@pytest.fixture(autouse=True)
def no_ci(monkeypatch):
    """Whether a terminal is there is the console's to say."""
    for name in ("CI", "TERM", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


def run(plain):
    out = io.StringIO()
    console = Console(file=out, force_terminal=not plain, width=100, color_system=None, highlight=False)
    with Progress(3, 0, console=console) as progress:
        progress.step(
            {"step": 0, "eval/accuracy": 0.36, "eval/accuracy_low": 0.32, "eval/accuracy_high": 0.4, "eval/failed": 3.0}
        )
        for step in (1, 2, 3):
            for done in range(0, 192, 32):
                progress.phase("sampling", done, 192)
            if step == 2:
                progress.note("warning: [/odd] markup")
            progress.step({"step": step, "loss": 0.0, **METRICS})
    return out.getvalue()


def test_plain_output_is_one_line_a_step_and_one_for_the_first_long_phase():
    lines = run(plain=True).splitlines()
    assert lines[0] == (
        "step 0/3  held-out accuracy 36.0% (95 % interval 32.0% to 40.0%), 3 completions not scored (they count as wrong)"
    )
    assert lines.pop(1) == "sampling 192 completions"
    assert lines[1].startswith("step 1/3  reward 0.500  clip 15.0%  length 44 tokens  throughput 9,000 tokens/s")
    assert lines[2] == "warning: [/odd] markup"
    assert lines[1].endswith("0:00 left") and "left" not in lines[4]
    assert len(lines) == 5 and "\x1b" not in "".join(lines)


@pytest.mark.parametrize(("reward", "told"), [(0.25, ""), (0.372, ", held-out reward 0.372"), (math.nan, "")])
def test_the_reward_of_an_evaluation_is_told_if_it_is_graded(reward, told):
    out = io.StringIO()
    with Progress(3, console=Console(file=out, highlight=False)) as progress:
        progress.step({"step": 0, "eval/accuracy": 0.25, "eval/reward": reward})
    assert out.getvalue() == f"step 0/3  held-out accuracy 25.0%{told}\n"


def test_the_live_view_shows_step_phase_and_metrics():
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", run(plain=False))
    assert "3/3" in text and "0/192" in text and "9,000 tokens/s" in text
    assert "warning: [/odd] markup" in text
    assert "step 0: held-out accuracy 36.0%" in text
    assert "loss" not in text  # a policy's loss says nothing


@pytest.mark.parametrize("terminal", [False, True])
def test_a_view_that_nobody_sees_any_more_ends_no_run(terminal):
    """Its terminal was closed, or `| head` has ended. The program is told by its exit status that it went on."""
    code = (
        "import os, sys, time\n"
        "from gspo.runs.progress import Progress\n"
        "with Progress(40) as p:\n"
        "    p.note('begun')\n"
        "    sys.stdin.read()\n"
        "    for step in range(1, 41):\n"
        "        p.phase(f'sampling {step}', 1, 2); p.step({'step': step, 'loss': 2.5}); p.note('x' * 4000)\n"
        "os._exit(42)\n"
    )
    ours, theirs = pty.openpty() if terminal else os.pipe()
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=theirs, stderr=subprocess.PIPE)
    os.close(theirs)
    shown = b""
    while b"begun" not in shown:
        shown += os.read(ours, 4096)
    os.close(ours)
    _, error = process.communicate(timeout=PATIENCE)
    assert process.returncode == 42, error.decode()


def test_a_notebook_gets_plain_lines_as_text(monkeypatch, capsys):
    """Its kernel defines get_ipython and sets FORCE_COLOR. What rich displays is cut off after 50 lines."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr(builtins, "get_ipython", type("ZMQInteractiveShell", (), {}), raising=False)
    with Progress(1) as progress:
        progress.step({"step": 1, "reward": 0.5})
    assert capsys.readouterr().out == "step 1/1  reward 0.500\n"


def shown(plain, total, *metrics, start=0, width=80):
    """What a view in a terminal, or plain lines, show of these metrics."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=not plain, width=width, color_system=None, highlight=False)
    with Progress(total, start, console=console) as progress:
        for each in metrics:
            progress.step(each) if isinstance(each, dict) else progress.note(each)
    return out.getvalue()


def test_what_a_reward_says_moves_no_cursor():
    for plain in (True, False):
        text = shown(plain, 3, "bad \x1b[2J\x1b]0;title\x07\x9b1m \u202e reward")
        assert "\\x1b[2J\\x1b]0;title\\x07\\x9b1m \\u202e reward" in text.replace("\n", "")
        assert "\x1b[2J" not in text and "\x07" not in text and "\x9b" not in text


def test_what_a_plain_line_says():
    assert shown(True, 1, {"step": 1}, {"step": 2}) == "step 1/1\nstep 2\n"  # more steps than planned
    parts = {"reward": 1.0, "reward/task": 1.0, "entropy": None, "eval/accuracy": math.nan}
    first, second = shown(True, 2, {"step": 1} | parts, {"step": 2, "reward/worked": 0.4} | parts, width=30).splitlines()
    assert first == "step 1/2  reward 1.000  0:00 left"  # a single part is the reward
    assert second == "step 2/2  reward 1.000  worked 0.40  task 1.00"


def test_steps_of_which_nobody_knows_how_many_there_are_and_metrics_that_the_view_has_no_place_for():
    for plain in (True, False):
        text = shown(plain, None, {"step": 3, "val/reward": 0.25, "val/odd": None}, {"step": 4, "reward": 0.5}, start=2)
        assert re.search(r"step 3  val/reward 0\.25 *\n", text)
        assert ("step 4  reward 0.500\n" if plain else "step 4  0:00") in text and " left" not in text


def test_the_view_fits_its_terminal(subtests):
    """Nothing wraps, and what counts stays whole: how far it is, and the newest values."""
    for width in (12, 30, 45, 60, 200):
        console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
        with subtests.test(width=width), Progress(1000, 0, "gspo training", console) as progress:
            for step in range(1, 60):
                progress.step({"step": step, **METRICS, "reward/of_a_long_name": float(step), "reward/b": 0.0})
            progress.phase("sampling", 33, 192)
            console = Console(file=io.StringIO(), width=width, color_system=None)
            console.print(progress._view())
            lines = console.file.getvalue().splitlines()
            assert len(lines) == 2 + 6 and all(cell_len(line) <= width for line in lines)
            assert "59/1000" in lines[0] and "33/192" in lines[1] and "59.00" in lines[6]
            assert width < 45 or "━" in lines[1]
            assert width < 60 or ("gspo training" in lines[0] and " left" in lines[0] and "█" in lines[6])


def test_ci_and_dumb_terminals_are_plain(monkeypatch):
    for env, plain in (({}, False), ({"CI": "true"}, True), ({"TERM": "dumb"}, True)):
        with monkeypatch.context() as patch:
            for name, value in env.items():
                patch.setenv(name, value)
            assert Progress(1, console=Console(file=io.StringIO(), force_terminal=True)).plain is plain


def test_sparkline_and_clock():
    assert (sparkline([0, 1, 2, 7]), sparkline([3, 3])) == ("▁▂▃█", "▁▁")
    assert [clock(s) for s in (5.4, 65, 3725)] == ["0:05", "1:05", "1:02:05"]
