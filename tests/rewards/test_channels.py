import asyncio
import math
import os
import signal
import sys
import types

import numpy
import pytest
import torch

from gspo.config.rewards import RewardConfig
from gspo.config.rollout import TaskConfig
from gspo.rewards import channels, graders, retry_policy
from gspo.rewards.scorer import Rewards
from gspo.workers.processes import Lost
from tests.data.tools import rollout
from tests.logged import logs, silent
from tests.patience import PATIENCE
from tests.rewards import graders as graders_that_misbehave
from tests.rewards.tools import hang, in_process, named, outcome, statuses

LIMIT = 0.2  # seconds, for what hangs alone
__all__ = ["hang", "statuses"]


@pytest.mark.parametrize(
    ("grader", "completions", "rewards", "error"),
    [
        ("raises", ["1", "x", "3"], [1, None, 3], "raises: ValueError: could not convert string to float: 'x'"),
        ("hangs", ["a", "hang", "b", "c"], [1, None, 1, 1], "hangs: took longer than 0.2 s"),
        ("hangs_in_c", ["hang", "b"], [None, 1], "took longer than 0.2 s"),
        ("dies", ["a", "exit", "b"], [1, None, 1], "dies: its process died (exit status 3)"),
        ("dies", ["segfault", "a"], [None, 1], "dies: its process died (SIGSEGV)"),
        ("dies", ["quit", "a"], [None, 1], "dies: SystemExit: no more"),
        ("talks", ["a", "b"], [2, 2], None),
        ("judges", ["a", "refuse", "b"], [1, None, 1], "judges: ConnectionError: no judge today"),
        ("sees_torch", ["a"], [0], None),
    ],
)
def test_functions_in_workers(grader, completions, rewards, error, hang):
    limit = PATIENCE if grader == "judges" else LIMIT
    got, errors = outcome(named(grader, timeout=limit), *completions)
    assert got == rewards
    for reward, found in zip(got, errors):
        assert (found is None) if reward is not None else (error in found)


def test_what_functions_return(subtests):
    for returned, rewards, error in (
        ([1.0], [None] * 3, "WrongLength: returned 1 values for 3 completions: return"),
        ({1.0, 2.0, 3.0}, [None] * 3, "returned a set, expected a list of"),
        (1.0, [None] * 3, "returned a float, expected a list of 1 numbers or None"),
        ([1e9, -1e9, 1.1e9], [1e9, -1e9, None], "beyond 1e+09: scale"),
        ([True, "1.0", -1e308], [1, None, None], ""),
        ([[0.1, 0.2], math.nan, -math.inf], [None] * 3, ": expected one finite number for each completion"),
        ([1, None, 1], [1, None, 1], "no reward function scored it"),
        (torch.tensor([1.0, 2.0, 3.0]), [1, 2, 3], ""),
        (numpy.array([1.0, 2.0, 3.0]), [1, 2, 3], ""),
    ):
        with subtests.test(returned=returned):
            got, errors = outcome(in_process(lambda prompts, completions, returned=returned: returned), "a", "b", "c")
            assert got == rewards and all(found is None or error in found for found in errors)


def test_callables_that_fail(hang):
    loops = set()

    async def judge(prompts, completions, **columns):
        loops.add(asyncio.get_running_loop())
        if "hang" in completions:
            await graders_that_misbehave.run_late()
        return [1 / ("zero" not in completions)] * len(completions)

    def hangs(prompts, completions, **columns):
        if "hang" in completions:
            hang()
        return [1.0] * len(completions)

    for function, limit in ((judge, PATIENCE), (hangs, LIMIT)):
        got, errors = outcome(in_process(function, timeout=limit), "a", "hang", "b")
        assert got == [1, None, 1]
        assert errors[1].endswith(f"took longer than {limit:g} s (reward.timeout)")
    assert len(loops) == 1  # so that it may keep what belongs to its loop
    got, errors = outcome(in_process(judge), "a", "zero", "b")
    assert (got, errors[1]) == ([1, None, 1], "judge: ZeroDivisionError: division by zero (test_channels.py:73)")


def test_a_batch_that_timed_out_is_not_tried_again(hang):
    calls = []

    def slow_for_many(prompts, completions):
        calls.append(len(completions))
        if len(completions) > 1:
            hang()
        return [1.0] * len(completions)

    completions = [rollout(completion) for completion in "abc"]
    with in_process(slow_for_many, timeout=LIMIT) as rewards:
        with logs() as told:
            assert [r.reward for r in rewards.score(completions)] == [1, 1, 1]
        with silent():
            assert [r.reward for r in rewards.score(completions)] == [1, 1, 1]
    assert calls == [3, 1, 1, 1, 1, 1, 1]
    assert told == [
        "reward slow_for_many: a call for 3 completions took longer than 0.2 s (reward.timeout), so from now on each "
        "completion gets a call of its own. Raise reward.timeout to wait for all at once, or return NaN for a completion "
        "that it cannot score"
    ]


def test_async_calls_stay_concurrent_after_a_time_out():
    at_work, most, calls = 0, 0, []

    async def judge(prompts, completions, **columns):
        nonlocal at_work, most
        calls.append(len(completions))
        at_work += 1
        most = max(most, at_work)
        try:
            await (asyncio.sleep(0.05) if len(completions) == 1 else graders_that_misbehave.run_late())
        finally:
            at_work -= 1
        return [1.0] * len(completions)

    with in_process(judge, timeout=PATIENCE) as rewards:
        for expected in ([4, 1, 1, 1, 1], [1, 1, 1, 1]):
            most = 0
            assert [r.reward for r in rewards.score([rollout(completion) for completion in "abcd"])] == [1] * 4
            assert (calls, most) == (expected, 4)
            calls.clear()


def test_an_async_function_that_blocks_ends_one_by_one(hang):
    calls = []

    async def judge(prompts, completions, step):
        calls.append((step[0], completions))
        if len(completions) > 1 or len(asyncio.all_tasks()) > 1:
            hang()
        return [1.0] * len(completions)

    with in_process(judge, timeout=LIMIT) as rewards:
        with logs() as told:
            assert [r.reward for r in rewards.score([rollout(completion, step=1) for completion in "ab"])] == [1, 1]
        assert len(told) == 1
        assert [r.reward for r in rewards.score([rollout(completion, step=2) for completion in "ab"])] == [1, 1]
    assert [completions for step, completions in calls if step == 2] == [["a"], ["b"]]


def test_a_batch_that_raised_is_tried_again():
    calls = []

    def judge(prompts, completions, **columns):
        calls.append(len(completions))
        return [float(completion) for completion in completions]

    with in_process(judge) as rewards:
        with logs(match="reward judge: a call for 2 completions failed .ValueError: .*'x'.*Mend the function"):
            rewards.score([rollout("1"), rollout("x")])
        with silent():
            rewards.score([rollout("x"), rollout("2")])
            rewards.score([rollout("3"), rollout("4")])
    assert calls == [2, 1, 1, 2, 1, 1, 2]


def test_not_every_completion_may_hang(monkeypatch):
    monkeypatch.setattr(channels, "GRACE", 0.1)
    monkeypatch.setattr(retry_policy, "MAX_LOST", 2)
    with named("hangs", timeout=0.1) as rewards, logs() as told:
        scored = rewards.score([rollout(completion) for completion in ["hang"] * 2 + ["good"] * 50])
    late = "took longer than 0.1 s (reward.timeout)"
    skipped = f"hangs: not scored: 2 calls before it hung or crashed: {late}"
    assert [one.error for one in scored] == [f"hangs: {late}"] * 2 + [skipped] * 50 and len(told) == 1
    with named("hangs", timeout=0.1) as rewards, silent():  # one alone says nothing about many
        assert rewards.score([rollout("hang")])[0].error == f"hangs: {late}"
        assert rewards.modes["hangs"].level == graders.BATCH


@pytest.mark.parametrize("kind", ["hang", "exit", "raise"])
def test_a_failed_group_is_left_out_as_a_whole(kind, hang):
    with named("compares", timeout=LIMIT, workers=1) as rewards:
        scored = rewards.score(
            [rollout(completion, i // 4) for i, completion in enumerate([*"abcd", *"ef", kind, "h", *"ijkl"])]
        )
        again = rewards.score([rollout(completion, i // 4) for i, completion in enumerate([kind, *"bcd", *"efgh"])])
    assert [r.reward for r in scored] == [0, 1, 2, 3, None, None, None, None, 0, 1, 2, 3]
    assert [r.reward for r in again] == [None] * 4 + [0, 1, 2, 3]
    assert all(r.error.startswith("compares: ") for r in scored[4:8])


def test_a_group_whose_process_died_between_calls_is_scored_whole():
    with named("compares", workers=1, timeout=PATIENCE) as rewards:
        rewards.score([rollout(completion) for completion in "ab"])
        rewards.modes["compares"].level = graders.SINGLY
        process = rewards.workers[0].process
        os.kill(process.popen.pid, signal.SIGKILL)
        assert process.connection.poll(PATIENCE)  # its child has hung up too
        scored = rewards.score([rollout(completion, i // 2) for i, completion in enumerate("abcd")])
    assert [r.reward for r in scored] == [None, None, 0, 1]


def test_columns_that_cannot_be_sent(monkeypatch):
    elsewhere = types.ModuleType("only_here")
    exec("class Thing: pass", elsewhere.__dict__)
    monkeypatch.setitem(sys.modules, "only_here", elsewhere)
    with named("length") as rewards:
        with pytest.raises(ValueError, match=r"cannot be sent to the reward workers .*: use plain values"):
            rewards.score([rollout("a", f=lambda: 0)])
        with pytest.raises(ValueError, match=r"cannot read the rows \(ModuleNotFoundError.*: use plain values"):
            rewards.score([rollout("a", f=elsewhere.Thing())])
        assert rewards.score([rollout("a")])[0].reward == 1


def test_a_worker_that_does_not_start_again_costs_completions_only(tmp_path, monkeypatch):
    (tmp_path / "once.py").write_text("""
from pathlib import Path
import os
mark = Path(__file__).with_suffix(".mark")
if mark.exists():
    raise ImportError("not twice")
mark.touch()

def score(prompts, completions, **columns):
    os._exit(4)
""")
    monkeypatch.syspath_prepend(tmp_path)
    rewards = Rewards(RewardConfig(functions=["once:score"], timeout=PATIENCE), TaskConfig())
    got, errors = outcome(rewards, "a", "b")
    assert got == [None, None]
    assert "not twice" in errors[0]


def test_a_worker_gets_the_variables_that_are_named(monkeypatch):
    monkeypatch.setenv("GRADER_KEY", "k")
    monkeypatch.setenv("HF_TOKEN", "t")
    columns = [rollout("", names=name) for name in ("GRADER_KEY", "HF_TOKEN", "PATH")]
    for env, expected in ([[], [0, 0, 1]], [["GRADER_KEY"], [1, 0, 1]]):
        with named("variables", env_passthrough=env) as rewards:
            assert [r.reward for r in rewards.score(columns)] == expected


def test_a_late_reader_of_a_closed_worker_takes_nothing_of_the_next(statuses):
    with named("length") as rewards:
        rewards.wait()
        old = rewards.workers[0]
        number = old.process.connection.fileno()
        rewards.close()
        rewards._start()  # as after Ctrl-C, while a thread may still be about to read
        assert rewards.workers[0].process.connection.fileno() != number
        with pytest.raises(Lost, match="SIGKILL"):
            old.process.receive(PATIENCE)
        assert rewards.score([rollout("a")])[0].reward == 1
