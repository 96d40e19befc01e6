"""Checkpoints on a real disk, and the signals that ask a run to end. tests/training has them in whole runs."""

import os
import signal
import threading

import pytest
import torch

from gspo.runs import checkpoint
from gspo.runs.checkpoint import SaveError


def save(folder, step, keep=2, value=0):
    def write(part):
        (part / "model").mkdir()
        (part / "model" / "weights").write_text(str(value))

    return checkpoint.save(folder, step, write, {"value": value}, keep)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_newest_are_kept_and_the_good_one(tmp_path):
    assert checkpoint.latest(tmp_path) is checkpoint.good(tmp_path) is None
    save(tmp_path, 2)
    checkpoint.keep_good(tmp_path, 2)
    for step in (4, 6, 10):
        save(tmp_path, step)
    assert names(tmp_path) == ["good", "step_000002", "step_000006", "step_000010"]
    assert checkpoint.latest(tmp_path).name == "step_000010" and checkpoint.good(tmp_path).name == "step_000002"
    checkpoint.keep_good(tmp_path, 10)
    save(tmp_path, 12)
    assert names(tmp_path) == ["good", "step_000010", "step_000012"]  # the good one is another now


def test_what_a_kill_leaves_is_no_checkpoint(tmp_path):
    save(tmp_path, 2)
    (tmp_path / "step_000004").mkdir()
    (tmp_path / ".step_000006.part" / "model").mkdir(parents=True)
    assert checkpoint.latest(tmp_path).name == "step_000002"
    save(tmp_path, 6, value=3)
    assert (tmp_path / "step_000006" / "model" / "weights").read_text() == "3"
    assert ".step_000006.part" not in names(tmp_path)


def test_the_state_comes_back_with_torchs_random_numbers(tmp_path):
    torch.manual_seed(7)
    folder = save(tmp_path, 2, value=5)
    drawn = torch.rand(3)
    torch.manual_seed(0)
    state = checkpoint.load_state(folder)
    assert (state["step"], state["value"]) == (2, 5)
    assert torch.equal(torch.rand(3), drawn)


def test_a_damaged_state_is_named(tmp_path):
    folder = save(tmp_path, 2)
    (folder / checkpoint.STATE).write_bytes(b"half")
    with pytest.raises(
        RuntimeError, match=r"state\.pt cannot be read .*: delete .*step_000002 to resume from the checkpoint"
    ):
        checkpoint.read_state(folder)


def test_a_folder_is_replaced_in_one_move_or_stays(tmp_path):
    final = tmp_path / "model"
    checkpoint.write_folder(final, lambda part: (part / "a").write_text("1"))
    seen = []

    def again(part):
        (part / "b").write_text("2")
        seen.append(names(final))  # the old one is whole while the new one is written

    checkpoint.write_folder(final, again)
    assert seen == [["a"]] and names(final) == ["b"]

    def fails(part):
        (part / "c").write_text("3")
        raise OSError(28, "No space left on device")

    with pytest.raises(SaveError, match=r"model could not be written .*No space left.* GiB are free there"):
        checkpoint.write_folder(final, fails)
    assert names(final) == ["b"] and names(tmp_path) == ["model"]


def test_a_run_goes_on_with_its_own_prompts_alone():
    checkpoint.same_data("a", "a")
    with pytest.raises(ValueError, match="the prompts are not those that this run began with"):
        checkpoint.same_data("a", "b")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_and_the_second_interrupts(number):
    told, before = [], signal.getsignal(number)
    with checkpoint.stop_signals(told.append) as stop:
        assert not stop.asked
        os.kill(os.getpid(), number)
        assert stop.asked and told == [
            f"{signal.Signals(number).name}: finishing this step, then saving; once more to stop at once"
        ]
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_other_threads_leave_signals_alone():
    before, found = signal.getsignal(signal.SIGINT), []

    def work():
        with checkpoint.stop_signals(found.append) as stop:
            found.append((stop.asked, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [(False, before)]
