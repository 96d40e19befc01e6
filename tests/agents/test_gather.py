"""Many runs of an agent at once: what fails is counted and told, and never more runs than asked for."""

import asyncio

import pytest

import gspo


async def run(name, error=None, after=0):
    for _ in range(after):
        await asyncio.sleep(0)
    if error:
        raise error
    return gspo.Trajectory([{"role": "user", "content": name}], reward=1.0)


def gathered(groups, **options):
    warnings = []
    groups_left = asyncio.run(gspo.gather(groups, warn=warnings.append, **options))
    return groups_left, warnings


def names(groups):
    return [[trajectory.messages_and_choices[0]["content"] for trajectory in group] for group in groups]


def test_groups_keep_their_order_and_are_what_train_takes():
    groups, warnings = gathered([[run("a", after=9), run("b")], (run(name) for name in "cd")])
    assert names(groups) == [["a", "b"], ["c", "d"]] and not warnings
    assert isinstance(groups[0], gspo.TrajectoryGroup)


def test_runs_that_fail_are_counted_and_a_group_of_fewer_than_two_is_dropped():
    wrong = ValueError("no such tool")
    groups = [[run("a"), run("b"), run("c", wrong)], [run("d"), run("e", wrong), run("f", OSError("gone"))]]
    kept, warnings = gathered(groups, max_exceptions=0.5)
    assert names(kept) == [["a", "b"]] and kept[0].exceptions == [wrong]
    (line,) = warnings
    assert line.startswith("3 of 6 runs") and "2 x ValueError: no such tool" in line and "1 of 2 groups are dropped" in line


def test_a_run_whose_session_was_cancelled_is_a_failed_one():
    kept, warnings = gathered([[run("a"), run("b"), run("c", asyncio.CancelledError())]], max_exceptions=1)
    assert names(kept) == [["a", "b"]] and "1 x CancelledError" in warnings[0]


def test_too_many_that_fail_stop_the_rest():
    ended = []

    async def slow(seconds):
        try:
            await asyncio.sleep(seconds)
        finally:
            ended.append(1)
        return gspo.Trajectory([], 0.0)

    def groups(seconds):
        return [[slow(seconds), slow(seconds), run("a", ValueError("x")), run("b", ValueError("x"), after=3)]]

    for allowed in (0, 1, 0.25):
        ended.clear()
        why = rf"max_exceptions = {allowed}, but . of 4 runs of the agent failed: .* x ValueError: x"
        with pytest.raises(RuntimeError, match=why):
            gathered(groups(60), max_exceptions=allowed)
        assert ended == [1, 1]
    for allowed in (2, 0.5):
        assert len(gathered(groups(0), max_exceptions=allowed)[0][0]) == 2

    async def forgot():
        return None

    with pytest.raises(RuntimeError, match="TypeError: it returned a NoneType, not a trajectory"):
        gathered([[forgot()]])


@pytest.mark.parametrize("at_once", [1, 3, None])
@pytest.mark.filterwarnings("error")
def test_as_many_at_once_as_asked_for(at_once):
    now, most, progress = 0, 0, []

    async def counted():
        nonlocal now, most
        now, most = now + 1, max(most, now + 1)
        await asyncio.sleep(0)
        now -= 1
        return gspo.Trajectory([], 0.0)

    runs = [[counted() for _ in range(5)] for _ in range(2)]
    gathered(runs, at_once=at_once, progress=lambda *told: progress.append(told))
    assert most == (at_once or 10) and progress == [("agent", n, 10) for n in range(1, 11)]
    with pytest.raises(RuntimeError):  # those that never began are closed, so Python has nothing to warn of
        gathered([[run("a", ValueError("x"))], [run(name) for name in "bcdef"]], at_once=1)


def test_what_are_no_groups_of_runs():
    unawaited = run("a")
    for groups, why in (
        (None, "groups = None, a NoneType"),
        (unawaited, "groups = .*, a coroutine"),
        ([unawaited], r"groups = \[<coroutine.*, a list: groups of runs"),
        ([[1, 2]], r"groups\[0\] = \[1, 2\], a list"),
    ):
        with pytest.raises(ValueError, match=why):
            gathered(groups)
    with pytest.raises(ValueError, match=r"gspo\.gather"):
        gspo.TrajectoryGroup([unawaited])
    unawaited.close()
