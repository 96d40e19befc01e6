import math

from gspo.report.read import RunMetrics, first_step, last_step, read_lines, read_run
from gspo.runs.folder import RunFolder
from gspo.runs.log import RunLog
from tests.report.fake_run import Quiet
from tests.report.rows import rollouts, row


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
    assert first_step(tmp_path / "none") == last_step(tmp_path / "none") == list(read_lines(tmp_path / "none")) == []
    path.write_bytes(b"")
    assert first_step(path) == last_step(path) == []


def test_nan_and_a_half_written_line_are_passed_over(tmp_path):
    with RunFolder.create(tmp_path / "run", "") as folder, RunLog(folder, progress=Quiet()) as log:
        for step in range(1, 6):
            log.metrics({"step": step, "reward": math.nan if step == 3 else step})
    with (tmp_path / "run" / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 6, "rew')
    steps, values = read_run(tmp_path / "run").series("reward")
    assert steps.tolist() == values.tolist() == [1, 2, 4, 5]


def test_series_by_hand():
    lines = [{"step": 0, "a": 1}, {"step": 1, "a": True, "b": 2}, {"a": 3, "b": math.inf}, {"step": 4, "a": 5.0, "b": 6}]
    made = RunMetrics("r", lines)
    steps, values = made.series("a")
    assert (steps.tolist(), values.tolist()) == ([0, 3, 4], [1, 3, 5])  # a line without a step counts from 1
    steps, (a, b) = made.rows(("a", "b"))
    assert (steps.tolist(), a.tolist(), b.tolist()) == ([4], [5], [6])
    assert [part.tolist() for part in made.series("none")] == [[], []]


def test_the_time_of_a_step_is_the_sum_of_its_parts(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 1, "time/sample": 1, "time/score": 2, "time/train": 4}\n{"step": 2, "time/train": 4, "time/step": 9}\n'
    )
    made = read_run(tmp_path, "a name")
    assert [line["time/step"] for line in made.lines] == [7, 9] and made.name == "a name"
    assert read_run(tmp_path).name == tmp_path.name
