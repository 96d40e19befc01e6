from gspo.report.events import ended, newest, prompt, warnings
from gspo.report.read import RunMetrics
from gspo.runs.folder import RunFolder
from gspo.runs.log import RunLog
from tests.report.fake_run import Quiet

NONE = RunMetrics("r", [])


def said(folder, *events):
    """The folder of a run that said this: step, kind and text."""
    with RunFolder.create(folder, "") as run, RunLog(run, progress=Quiet()) as log:
        for log.step, kind, text in events:
            log.event(kind, text)
    return folder


def test_warnings_that_differ_in_numbers_are_one(tmp_path):
    folder = said(
        tmp_path / "run",
        (3, "warning", "step 3: kl is 0.02, 12 times its recent median: a remedy"),
        (4, "warning", "another"),
        (24, "warning", "step 24: kl is 1.5e-3, 1.1e+01 times its recent median: a remedy"),
        (60, "info", "no warning"),
        (71, "warning", "step 71: kl is 2, 30 times its recent median: a remedy"),
        (72, "warning", "step 72 had no group"),
    )
    assert warnings(folder, NONE) == [
        "kl is 0.02, 12 times its recent median: a remedy (3 times, first in step 3, last in step 71)",
        "another (reported only in step 4)",
        "step 72 had no group",  # it names its step once
    ]


def test_the_first_prompt_is_the_one(tmp_path):
    folder = said(tmp_path / "run", (0, "info", "a prompt"), (1, "prompt", "<s>hi"), (2, "prompt", "<s>ho"))
    assert prompt(folder) == "<s>hi" and prompt(tmp_path) == ""


def test_what_was_lost_is_counted(tmp_path):
    run = RunMetrics("r", [{"step": 1, "rollouts/failed": 1, "updates/skipped": 0}, {"step": 2, "groups/dropped": 3.0}])
    assert warnings(tmp_path, run) == ["1 rollout had no reward", "3 groups dropped: fewer than two rewards left"]


def test_why_it_ended(tmp_path):
    folder = said(tmp_path / "run", (1, "error", "first"), (2, "error", "RuntimeError: at http://me:pass@host"))
    assert ended(folder, "error", NONE) == "RuntimeError: at http://<hidden>@host" and not ended(folder, "collapse", NONE)
    assert ended(folder, "error", RunMetrics("r", [{"step": 2}]))
    assert not ended(folder, "error", RunMetrics("r", [{"step": 3}]))  # it went on
    folder = said(tmp_path / "other", (2, "collapse", "the reward fell"))
    assert not ended(folder, "error", NONE) and ended(folder, "collapse", NONE) == "the reward fell"
    assert ended(tmp_path, "error", NONE) == "" and warnings(tmp_path, NONE) == []


def test_the_newest_events_are_listed_without_what_stands_elsewhere_and_without_secrets(tmp_path):
    kinds = ("warning", "prompt", "error", "collapse")
    notes = [(step, "info", f"note {step} http://me:word@host") for step in range(300)]
    folder = said(tmp_path / "run", *notes, *((301, kind, "x") for kind in kinds))
    with (folder / "events.jsonl").open("a") as file:
        file.write('{"kind": "half')
    found = newest(folder)
    assert len(found) == 200 and found[-1] == (299, "info", "note 299 http://<hidden>@host")
    assert newest(tmp_path) == []
