"""A run whose machine loses its power goes on from its last checkpoint, whatever had not reached the disk by then."""

import errno
import hashlib
import itertools
import os

import pytest

from gspo.runs import checkpoint
from gspo.runs.disk import SaveError
from gspo.runs.folder import RunFolder
from gspo.runs.log import RunLog
from tests.campaign import CAMPAIGN
from tests.runs.power_loss import failing, recorded, restored
from tests.training.whole import numbers, train

CHANGES = {"train": {"steps": 3, "save_every": 1, "keep_checkpoints": 1, "keep_best": True}, "eval": {"every": 1}}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The states that a run may leave, each with what happens then and the newest checkpoint that was reported as saved; and
    the run's metrics.
    """
    root, reported, save = tmp_path_factory.mktemp("disk"), [(0, "")], checkpoint.save
    with recorded(root) as disk, pytest.MonkeyPatch.context() as patch:

        def saved(*args, **more):
            path = save(*args, **more)
            reported.append((len(disk.states), path.name))
            return path

        patch.setattr(checkpoint, "save", saved)
        folder = train(root / "runs/of/mine", **CHANGES).folder
    states = [(*state, max(name for at, name in reported if at <= k)) for k, state in enumerate(disk.states)]
    return states, numbers(folder)


def distinct(states, key):
    """One state for each key."""
    return {key(tree, saved): (what, tree, saved) for what, tree, saved in states}.values()


def content(tree, saved):
    return hashlib.sha256(repr(sorted(tree.items())).encode()).hexdigest(), saved


def reached(path):
    """The checkpoint that the run in this folder goes on from, once all that it needs has been checked; "" for none."""
    if not (path / "config.toml").exists():
        RunFolder(path).check_unused()  # it begins anew
        return ""
    with RunFolder.resume(path) as folder, RunLog(folder) as log:
        assert folder.config.read_text().startswith("[")
        checkpoint.sweep(folder)
        last = checkpoint.latest(folder.checkpoints)
        if last is None:
            log.rewind({})
            return ""
        checkpoint.check(last)
        log.rewind(checkpoint.read_state(last)["log"])
        best = folder.checkpoints / checkpoint.BEST
        assert not best.exists() or checkpoint.marked(folder.checkpoints, checkpoint.BEST)
        return last.name


def test_every_state_goes_on_from_the_last_checkpoint_that_was_reported(whole, tmp_path, subtests):
    kept = distinct(whole[0], content)
    assert len(kept) > 60
    for what, tree, saved in kept:
        with subtests.test(what):
            restored(tree, tmp_path / "disk")
            assert reached(tmp_path / "disk/runs/of/mine") >= saved


def visible(tree, saved):
    """The names in the run's folder and among its checkpoints, but for those that a write leaves."""
    return tuple(name for name in tree if name.count("/") <= 4 and "/." not in name)


def test_the_run_that_goes_on_is_the_one_that_was_not_broken(whole, tmp_path, subtests):
    """One state for each set of names in the run's folder and among its checkpoints."""
    states, numbers_of_all = whole
    resumable = [state for state in states if "runs/of/mine/config.toml" in state[1]]
    for what, tree, _ in distinct(resumable, visible):
        with subtests.test(what):
            restored(tree, tmp_path / "disk")
            folder = train(tmp_path / "disk/runs/of/mine", resume=True, **CHANGES).folder
            assert numbers(folder) == numbers_of_all


@pytest.mark.slow
def test_an_operation_that_fails_ends_the_run_in_words_or_not_at_all(whole, tmp_path, subtests):
    """An I/O error at each operation on the disk in turn, or too little memory: the run goes on from what is there."""
    for number in itertools.count(1, 1 if CAMPAIGN else 4):
        folder = tmp_path / str(number)
        failure = MemoryError() if number % 3 == 1 else OSError(errno.EIO, os.strerror(errno.EIO))
        with subtests.test(number):
            with failing(folder, number, failure) as seen:
                try:
                    train(folder / "runs/of/mine", **CHANGES)
                except MemoryError as error:
                    assert error is failure
                except (SaveError, ValueError) as error:
                    assert "Input/output error" in str(error)
            if len(seen) < number:
                break
            train(folder / "runs/of/mine", resume=(folder / "runs/of/mine/config.toml").exists(), **CHANGES)
            assert numbers(folder / "runs/of/mine") == whole[1], seen[-1]
