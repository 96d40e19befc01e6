"""Checkpoints on a real disk. tests/training has them in whole runs."""

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from gspo.runs import checkpoint, disk
from gspo.runs.disk import SaveError
from gspo.runs.folder import RunFolder
from tests.logged import logs
from tests.runs.full_disk import full_disk


def save(folder, step, keep=2, value=0, needed=True, write=lambda part: None):
    def learner(part):
        (part / "model").mkdir()
        (part / "model" / "weights").write_text(str(value) * 1000)
        (part / checkpoint.LEARNER).write_bytes(b"moments" * 100)
        write(part)

    return checkpoint.save(folder, step, learner, {"value": value}, "[train]\n", keep, needed)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_newest_are_kept_and_the_good_one(tmp_path):
    assert checkpoint.latest(tmp_path) is checkpoint.marked(tmp_path, checkpoint.GOOD) is None
    save(tmp_path, 2)
    checkpoint.mark(tmp_path, 2, checkpoint.GOOD)
    for step in (4, 6, 10):
        save(tmp_path, step)
    assert names(tmp_path) == ["good", "step_000002", "step_000006", "step_000010"]
    assert (
        checkpoint.latest(tmp_path).name == "step_000010"
        and checkpoint.marked(tmp_path, checkpoint.GOOD).name == "step_000002"
    )
    checkpoint.mark(tmp_path, 10, checkpoint.GOOD)
    save(tmp_path, 12)
    assert names(tmp_path) == ["good", "step_000010", "step_000012"]  # the good one is another now


@pytest.mark.parametrize("left", ["step_000002.old", "step_000002.part", "step_000002.before", "good.part"])
def test_what_a_kill_leaves_is_no_checkpoint_and_is_cleared_up_at_the_next_save_and_the_next_start(tmp_path, left):
    run = RunFolder.create(tmp_path / "run", "")
    for clear_up in (lambda: save(run.checkpoints, 6), lambda: checkpoint.sweep(run)):
        save(run.checkpoints, 2)
        save(run.checkpoints, 4)
        gone, mine = run.checkpoints / f".{left}", run.checkpoints / ".mine.old"
        gone.mkdir()
        (gone / "weights").write_text("half")
        mine.mkdir(exist_ok=True)
        assert checkpoint.latest(run.checkpoints).name in ("step_000004", "step_000006")
        clear_up()
        assert not gone.exists() and mine.exists()
        assert "step_000004" in names(run.checkpoints)
    run.close()


def test_a_checkpoint_that_a_kill_hid_comes_back(tmp_path):
    with RunFolder.create(tmp_path / "run", "") as run:
        save(run.checkpoints, 2, value=1)
        (run.checkpoints / "step_000002").rename(run.checkpoints / ".step_000002.before")  # the new one was about to come
        checkpoint.sweep(run)
        assert checkpoint.load_state(checkpoint.latest(run.checkpoints))["value"] == 1


def test_only_numbered_folders_count_and_by_their_number(tmp_path):
    for step in (999_999, 1_000_000):
        save(tmp_path, step, keep=9)
    for other in ("step_best", "step_000001 (copy)", "step_2", "step_0999999"):
        shutil.copytree(tmp_path / "step_999999", tmp_path / other)
    assert [path.name for path in checkpoint.steps(tmp_path)] == ["step_999999", "step_1000000"]
    save(tmp_path, 1_000_002, keep=2)
    assert [path.name for path in checkpoint.steps(tmp_path)] == ["step_1000000", "step_1000002"]
    assert (tmp_path / "step_best" / checkpoint.STATE).exists()  # not ours to delete


def files(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", ["state.pt", "learner.pt", "config.toml", "model/weights", "SHA256SUMS"])
def test_one_flipped_bit_anywhere_is_noticed_and_the_file_named(tmp_path, name):
    save(tmp_path, 2)
    folder = save(tmp_path, 4)
    assert len(files(folder)) == 5 and name in files(folder)
    checkpoint.check(folder)
    whole = (folder / name).read_bytes()
    rng = random.Random(name)
    for _ in range(10):
        at, bit = rng.randrange(len(whole)), rng.randrange(8)
        (folder / name).write_bytes(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
        with pytest.raises(RuntimeError, match=r"step_000004/.* is (damaged|missing).*delete .*goes on from step_000002"):
            checkpoint.check(folder)
    (folder / name).write_bytes(whole)
    checkpoint.check(folder)
    (folder / name).unlink()
    with pytest.raises(RuntimeError, match=rf"{name} is missing"):
        checkpoint.check(checkpoint.latest(tmp_path))


def test_the_checksums_are_as_sha256sum_reads_them(tmp_path):
    folder = save(tmp_path, 2)
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", disk.SUMS], cwd=folder, check=True)


def test_a_checkpoint_under_another_name_is_refused(tmp_path):
    folder = save(tmp_path, 2).rename(tmp_path / "step_000009")
    with pytest.raises(RuntimeError, match="holds step 2: give it its name step_000002 back"):
        checkpoint.load_state(folder)


def test_a_full_disk_is_logged_or_raised_and_leaves_what_was_there(tmp_path):
    def full(part):
        (part / "model" / "tokenizer.json").symlink_to("/dev/full")
        (part / "model" / "tokenizer.json").write_text("words")

    with logs("step_000002 could not be written .*no checkpoint was saved yet"):
        assert save(tmp_path, 2, needed=False, write=full) is None
    save(tmp_path, 4)
    assert save(tmp_path, 6, needed=False, write=full) is None
    with pytest.raises(
        SaveError, match=r"step_000006 could not be written .*the disk is full, make room.*from .*step_000004"
    ):
        save(tmp_path, 6, write=full)
    assert names(tmp_path) == ["step_000004"]
    checkpoint.check(tmp_path / "step_000004")
    with RunFolder.create(tmp_path / "run", "") as run, pytest.raises(SaveError, match=r"run/model could not .*is full"):
        checkpoint.save_model(run, lambda folder: (os.mkdir(f"{folder}/model"), full(Path(folder))), None)


def test_a_good_checkpoint_that_cannot_be_marked_is_logged_or_raised_and_the_one_before_stays_good(tmp_path):
    for step in (2, 4):
        save(tmp_path, step)
    checkpoint.mark(tmp_path, 2, checkpoint.GOOD, needed=False)
    with full_disk():
        with logs(r"^step 4: .*/good could not be written \(.*GiB are free there") as told:
            checkpoint.mark(tmp_path, 4, checkpoint.GOOD, needed=False)
        with pytest.raises(SaveError, match="good could not be written"):
            checkpoint.mark(tmp_path, 4, checkpoint.GOOD)
    assert len(told) == 1
    assert checkpoint.marked(tmp_path, checkpoint.GOOD).name == "step_000002" and names(tmp_path) == [
        "good",
        "step_000002",
        "step_000004",
    ]


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
    with pytest.raises(RuntimeError, match=r"state\.pt cannot be read .*There is no checkpoint before it"):
        checkpoint.read_state(folder)


def test_a_run_goes_on_with_its_own_prompts_alone():
    checkpoint.check_same_data("a", "a")
    with pytest.raises(ValueError, match="the prompts are not those that this run began with"):
        checkpoint.check_same_data("a", "b")
