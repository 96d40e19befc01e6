import os
import signal
import subprocess
import sys

import pytest

from gspo.eval.replies import Lines, Mark, Reply, read


def reply(i, problem="a"):
    return Reply(problem, i, f"text {i}\u2028", 3, "eos")


def test_replies_are_there_again_when_the_file_is_opened_again(tmp_path):
    path = tmp_path / "replies.jsonl"
    with Lines(path, Reply) as lines:
        for i in (0, 1, 1):
            lines.add(reply(i))
    with Lines(path, Reply) as lines:
        assert lines.lines == {("a", 0): reply(0), ("a", 1): reply(1)}
        lines.add(reply(2))
    assert len(read(path, Reply)) == 3 and len(path.read_bytes().splitlines()) == 3
    path.write_bytes(path.read_bytes() * 3)
    assert len(read(path, Reply)) == 3


def test_a_line_that_a_kill_has_cut_is_sampled_again(tmp_path):
    path = tmp_path / "replies.jsonl"
    with Lines(path, Reply) as lines:
        lines.add(reply(0))
        lines.add(reply(1))
    for cut in (1, 20, 60):
        path.write_bytes(path.read_bytes()[:-cut])
        with Lines(path, Reply) as lines:
            assert list(lines.lines) == [("a", 0)]
            lines.add(reply(1))
        assert read(path, Reply) == {("a", 0): reply(0), ("a", 1): reply(1)}


def test_a_line_that_is_none_of_ours_is_named(tmp_path):
    path = tmp_path / "replies.jsonl"
    for line in ("{}", "[]", "nonsense"):
        path.write_text(line + "\n")
        with pytest.raises(ValueError, match=r"replies.jsonl, line 1: is no line of an evaluation"):
            Lines(path, Reply)


def test_one_process_writes_at_a_time(tmp_path):
    with Lines(tmp_path / "marks.jsonl", Mark), pytest.raises(RuntimeError, match="another process is writing"):
        Lines(tmp_path / "marks.jsonl", Mark)
    with Lines(tmp_path / "marks.jsonl", Mark) as lines:
        lines.add(Mark("a", 0, True))


WRITER = """
import itertools, sys
from pathlib import Path
from gspo.eval.replies import Lines, Reply
with Lines(Path(sys.argv[1]), Reply) as lines:
    for i in itertools.count(len(lines.lines)):
        lines.add(Reply("a", i, "x" * 5000, 1, "eos"))
        print(i, flush=True)
"""


def test_what_was_said_to_be_there_is_there_after_a_kill(tmp_path):
    path, last = tmp_path / "replies.jsonl", -1
    for _ in range(3):
        process = subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE, text=True)
        while last < 30:
            last = int(process.stdout.readline())
        os.kill(process.pid, signal.SIGKILL)
        said = [last, *map(int, process.stdout.read().split())]
        process.wait()
        there = read(path, Reply)
        assert len(there) >= max(said) + 1 and [i for _, i in there] == list(range(len(there)))
        last = -1
