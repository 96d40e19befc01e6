"""The files of a run: cut back to a checkpoint, always valid JSON."""

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


def test_metrics_are_on_the_disk_at_once(tmp_path):
    with RunFolder.create(tmp_path / "run", "") as folder:
        log = RunLog(folder, progress=Quiet())
        log.metrics({"step": 1, "reward": 0.1 + 0.2, "kl": math.nan, "ratio": {"max": math.inf}})
        assert read(folder) == [{"step": 1, "reward": 0.1 + 0.2, "kl": None, "ratio": {"max": None}}]
        log.close()


def test_lines_that_are_no_events_are_passed_over(tmp_path):
    with RunFolder.create(tmp_path / "run", "") as folder:
        (folder.path / "events.jsonl").write_text('3\n{"text": "a"}\n{"kind": "warning", "text": "b"}\n')
        with RunLog(folder, progress=Quiet()) as log:
            log.warn("b")  # it stands there already
        assert len((folder.path / "events.jsonl").read_text().splitlines()) == 3


@pytest.mark.parametrize("length", [0, 2000, 2001, 100_000])
def test_a_prompt_is_shown_once_and_loses_its_middle(tmp_path, length):
    with logs("", logging.INFO) as told, RunFolder.create(tmp_path / "run", "") as folder, RunLog(folder) as log:
        log.prompt("a" * length + "\x1b[31m<|im_end|>", 7)
        log.prompt("another", 1)
    (event,) = read(folder, "events.jsonl")
    assert event["kind"] == "prompt" and event["text"].endswith("\x1b[31m<|im_end|>") and len(event["text"]) < 2100
    assert told == [f"a prompt as the model reads it, 7 tokens:\n{event['text']}"]
    assert (f"… {length + 15 - 2000:,} characters left out …" in event["text"]) == (length + 15 > 2000)


def test_arrays_and_half_characters_are_written():
    row = {
        "logp": np.array([-0.5, -math.inf]),
        "n": np.int64(3),
        "x": np.float32(0.5),
        "text": "é\ud83d\u2028\n",
    }
    line = to_json(row)
    assert line.count(b"\n") == 1
    assert json.loads(line) == {"logp": [-0.5, None], "n": 3, "x": 0.5, "text": "é\ud83d\u2028\n"}
    with pytest.raises(TypeError, match="cannot be written as JSON"):
        to_json({"what": object()})


SEPARATORS = "".join(c for c in map(chr, range(sys.maxunicode + 1)) if len(f"a{c}b".splitlines()) > 1)
texts = st.text() | st.text(st.sampled_from(f'{SEPARATORS}\\u"a'))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
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


def test_a_warning_is_given_once(tmp_path, caplog):
    caplog.set_level(logging.INFO, "gspo")
    with RunFolder.create(tmp_path / "run", "") as folder, RunLog(folder) as log:
        log.step = 3
        log.warn("odd clip range")
        log.warn("odd clip range")
        log.note("saved")
        assert read(folder, "events.jsonl") == [
            {"step": 3, "kind": "warning", "text": "odd clip range"},
            {"step": 3, "kind": "info", "text": "saved"},
        ]
    assert caplog.record_tuples == [("gspo.runs.log", 30, "odd clip range"), ("gspo.runs.log", 20, "saved")]


def test_a_resumed_run_logs_a_warning_again_and_writes_it_once(tmp_path, caplog):
    for make in (lambda d: RunFolder.create(d, ""), RunFolder.resume):
        with make(tmp_path / "run") as folder, RunLog(folder) as log:
            log.warn("odd")
    assert len(read(folder, "events.jsonl")) == 1
    assert caplog.messages == ["odd", "odd"]


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
        position = log.position()
        log.metrics({"step": 2})
        size = (folder.path / "metrics.jsonl").stat().st_size
        (folder.path / "rollouts.jsonl").write_bytes(b"")
        with pytest.raises(RuntimeError, match=r"rollouts.jsonl has 0 bytes, but the checkpoint was saved at \d+"):
            log.rewind(position)
        assert (folder.path / "metrics.jsonl").stat().st_size == size


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
    with (
        RunFolder.create(tmp_path / "run", "") as folder,
        RunLog(folder, [Broken(), recorder], Quiet()) as log,
    ):
        log.metrics({"step": 1, "reward": 0.5, "kl": math.nan, "kl_ref": None, "name": "x"})
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
