"""The files of a run: cut back to a checkpoint, always valid JSON."""

import datetime
import json
import logging
import math
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gspo.runs.folder import RunFolder
from gspo.runs.log import RunLog, finite, to_json
from tests.logged import logs
from tests.report.fake_run import Quiet


def read(folder, name="metrics.jsonl"):
    return [json.loads(line) for line in (folder.path / name).read_text().splitlines()]


def test_arrays_are_written():
    row = {"logp": np.array([-0.5, -math.inf]), "n": np.int64(3), "x": np.float32(0.5)}
    assert json.loads(to_json(row)) == {"logp": [-0.5, None], "n": 3, "x": 0.5}


def test_what_json_lacks_is_written_as_text():
    """An environment may put anything into a message: its episode is lost, and not the run."""
    for more, written in (({}, {}), ({"x": math.nan}, {"x": None})):
        row = {"content": b"\xff", "when": datetime.date(2026, 1, 2)} | more
        assert json.loads(to_json(row)) == {"content": "b'\\xff'", "when": "2026-01-02"} | written


def test_a_prompt_is_shown_once_and_loses_its_middle(tmp_path):
    for length in (1985, 1986):  # one character too many
        with logs("", logging.INFO) as told, RunFolder.create(tmp_path / str(length), "") as folder, RunLog(folder) as log:
            log.prompt("a" * length + "\x1b[31m<|im_end|>", 7)
            log.prompt("another", 1)
        (event,) = read(folder, "events.jsonl")
        assert event["kind"] == "prompt" and event["text"].endswith("\x1b[31m<|im_end|>")
        assert told == [f"a prompt as the model reads it, 7 tokens:\n{event['text']}"]
        assert ("… 1 characters left out …" in event["text"]) == (length == 1986)


SEPARATORS = "".join(c for c in map(chr, range(sys.maxunicode + 1)) if len(f"a{c}b".splitlines()) > 1)
texts = st.text() | st.text(st.sampled_from(f'{SEPARATORS}\\u"a'))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(texts, values, max_size=5))
def test_every_line_is_valid_json(row):
    def strict(text):
        raise AssertionError(f"{text} is no JSON")

    def without(value):
        if isinstance(value, float):
            return value if math.isfinite(value) else None
        if isinstance(value, dict):
            return {k: without(v) for k, v in value.items()}
        return [without(v) for v in value] if isinstance(value, list) else value

    line = to_json(row)
    assert line.endswith(b"\n") and len(line.splitlines()) == len(line.decode("utf-8").splitlines()) == 1
    assert json.loads(line.decode("utf-8"), parse_constant=strict) == finite(row) == without(row)


def test_a_warning_is_written_once_a_step_and_logged_once_and_once_more_by_a_resumed_run(tmp_path, caplog):
    """Its events tell when it ceased."""
    caplog.set_level(logging.INFO, "gspo")
    with RunFolder.create(tmp_path / "run", "") as folder, RunLog(folder) as log:
        for log.step in (1, 1, 3):
            log.warn("odd")
        log.note("saved")
    with RunFolder.resume(tmp_path / "run") as folder, RunLog(folder) as log:
        log.warn("odd")
    assert read(folder, "events.jsonl") == [
        *({"step": step, "kind": "warning", "text": "odd"} for step in (1, 3)),
        {"step": 3, "kind": "info", "text": "saved"},
    ]
    assert caplog.record_tuples == [
        ("gspo.runs.log", level, text) for level, text in ((30, "odd"), (20, "saved"), (30, "odd"))
    ]


def test_rewind_drops_surplus_and_half_written_lines(tmp_path):
    with RunFolder.create(tmp_path / "run", "") as folder, RunLog(folder, progress=Quiet()) as log:
        log.metrics({"step": 1})
        log.rollouts([{"step": 1}, {"step": 1}])
        position = log.position()
        before = {name: (folder.path / name).read_bytes() for name in position}
        log.metrics({"step": 2})
        log.rollouts([{"step": 2}])
        log.warn("later")
    with (tmp_path / "run" / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 3, "rew')  # killed here
    with (tmp_path / "run" / "events.jsonl").open("ab") as file:
        file.write(b'{"step": 3, "ki')
    with RunFolder.resume(tmp_path / "run") as folder, RunLog(folder, progress=Quiet()) as log:
        log.rewind(position)
        assert {name: (folder.path / name).read_bytes() for name in position} == before
        log.metrics({"step": 2})
        log.warn("later")  # its event was cut off, so it is written again
        assert [row["step"] for row in read(folder)] == [1, 2]
        assert [row["text"] for row in read(folder, "events.jsonl")] == ["later"]
        log.rewind({})
        assert log.position() == dict.fromkeys(position, 0)


def test_a_shorter_file_is_an_error_and_nothing_is_cut(tmp_path):
    with RunFolder.create(tmp_path / "run", "") as folder, RunLog(folder, progress=Quiet()) as log:
        log.metrics({"step": 1})
        log.rollouts([{"step": 1}])
        log.note("begun")
        position = log.position()
        log.metrics({"step": 2})
        size = (folder.path / "metrics.jsonl").stat().st_size
        (folder.path / "events.jsonl").write_bytes(b"")
        with pytest.raises(RuntimeError, match=r"events.jsonl has 0 bytes, but the checkpoint was saved at \d+"):
            log.rewind(position)
        assert (folder.path / "metrics.jsonl").stat().st_size == size
        del position["events.jsonl"]
        for left in (b"", b"{}\n"):  # deleted, to make room, and written to since
            (folder.path / "rollouts.jsonl").write_bytes(left)
            with logs(match="rollouts.jsonl has lost lines: the report lacks completions from before"):
                log.rewind(position)
            assert (folder.path / "rollouts.jsonl").read_bytes() == left
        assert (folder.path / "metrics.jsonl").stat().st_size == position["metrics.jsonl"]


def test_kill_9_at_any_moment_leaves_a_folder_that_rewinds(tmp_path):
    code = (
        "import sys, json\n"
        "from gspo.runs.log import RunFolder, RunLog\n"
        "log = RunLog(RunFolder.create(sys.argv[1], ''))\n"
        "for step in range(1, 10**6):\n"
        "    log.rollouts([{'step': step, 'completion': 'x' * 5000}] * 3)\n"
        "    log.metrics({'step': step})\n"
        "    if step % 5 == 0: print(json.dumps(log.position()), flush=True)\n"
    )
    for i, wait in enumerate((0.02, 0.1)):
        run = tmp_path / str(i)
        process = subprocess.Popen([sys.executable, "-c", code, run], stdout=subprocess.PIPE)
        first = process.stdout.readline()
        time.sleep(wait)
        process.kill()
        printed = [line for line in [first, *process.stdout.read().split(b"\n")] if line.strip().endswith(b"}")]
        process.stdout.close()
        process.wait()
        with RunFolder.resume(run) as folder, RunLog(folder, progress=Quiet()) as log:
            log.rewind(json.loads(printed[-1]))
            steps = 5 * len(printed)
            assert [row["step"] for row in read(folder)] == list(range(1, steps + 1))
            assert len(read(folder, "rollouts.jsonl")) == 3 * steps


class Broken:
    name = "broken"

    def log(self, metrics, step):
        raise ConnectionError("no route")

    def close(self):
        raise AssertionError("it was dropped")


class Recorder:
    name = "recorder"

    def __init__(self):
        self.seen = []

    def log(self, metrics, step):
        self.seen.append((step, metrics))

    def close(self):
        self.seen.append("closed")


def test_trackers_get_numbers_and_a_broken_one_is_dropped(tmp_path):
    recorder = Recorder()
    with RunFolder.create(tmp_path / "run", "") as folder, RunLog(folder, [Broken(), recorder], Quiet()) as log:
        log.metrics({"step": 1, "reward": 0.5, "kl": math.nan, "kl_ref": None, "name": "x"})
        assert read(folder) == [{"step": 1, "reward": 0.5, "kl": None, "kl_ref": None, "name": "x"}]  # at once
        log.metrics({"step": 2, "reward": 1})
        log.metrics({"step": 0, "val/reward": 1.0})  # dates no event back
        log.note("later")
        assert [e["step"] for e in read(folder, "events.jsonl")] == [1, 2]
        assert [e["text"] for e in read(folder, "events.jsonl")] == [
            "tracker broken failed and gets no more metrics: no route", "later",
        ]  # fmt: skip
    assert recorder.seen == [(1, {"reward": 0.5}), (2, {"reward": 1.0}), (2, {"val/reward": 1.0}), "closed"]


def test_a_library_is_silent_but_for_warnings_whatever_is_recorded():
    """Where logging is not set up: two blocks, one in the other and one after the other, and no level is left behind."""
    code = (
        "import logging\n"
        "from gspo.runs.log import recorded\n"
        "outer, inner = [], []\n"
        "log = logging.getLogger('gspo.data')\n"
        "with recorded(outer.append):\n"
        "    with recorded(inner.append):\n"
        "        for say in (log.debug, log.info, log.warning): say('a')\n"
        "    log.info('b')\n"
        "log.info('c'); log.warning('d')\n"
        "print([r.msg for r in outer], [r.msg for r in inner], logging.getLogger('gspo').level)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['a', 'a', 'b'] ['a', 'a'] 0\n" and done.stderr == "a\nd\n"
