import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import time
import types
import warnings
from pathlib import Path

import pytest

import gspo
from gspo.config.rewards import RewardConfig
from gspo.config.rollout import TaskConfig
from gspo.rewards import channels, graders
from gspo.rewards.scorer import Rewards
from tests.data.tools import rollout

ROOT = os.getcwd()
pytestmark = pytest.mark.filterwarnings("ignore:reward .*a call for")


def named(*functions, source="", **config):
    functions = [f if f in ("task", "exact", "math") else f"tests.rewards.graders:{f}" for f in functions]
    return Rewards(RewardConfig(functions=functions, **config), TaskConfig(source=source))


def outcome(rewards, *completions, **columns):
    """Rewards and errors of completions, four to a prompt."""
    with rewards:
        scored = rewards.score([rollout(completion, i // 4, **columns) for i, completion in enumerate(completions)])
    return [r.reward for r in scored], [r.error for r in scored]


def test_the_reasoning_gym_scorer():
    entry = {"question": "?", "answer": "8", "metadata": {}}
    task = TaskConfig(source="reasoning_gym:count_bits")
    completions = [
        "<answer>8</answer>",
        "8",
        "<answer>9</answer>",
        "<think>1</think><answer> 8 </answer>",
        "<answer></answer>",
    ]
    with Rewards(RewardConfig(), task) as rewards:
        scored = rewards.score([rollout(completion, task=task.source, **entry) for completion in completions * 40])
    assert [r.reward for r in scored] == [1, 0, 0, 1, 0] * 40
    assert scored[0].reward_parts == {"task": 1.0} and scored[0].error is None


@pytest.mark.parametrize(
    ("completion", "answer", "right"),
    [
        ("42", "42", 1), (" 42\n", 42, 1), ("it is 42", "42", 0), ("<answer> 42 </answer> bye", "42", 1),
        ("<answer>1</answer> no, <answer>42</answer>", "42", 1),
        ("use <answer> tags: <answer>42</answer>", "42", 1),
        ("<answer>42</answer></answer>", "42", 1), ("<answer>42", "42", 0), ("<think>7</think>42", "42", 1),
        ("<think>42", "42", 0), ("72", "half of it\n#### 72", 1), ("#### 72", "72", 0),
    ],
)  # fmt: skip
def test_exact(completion, answer, right):
    score = graders.load("exact", RewardConfig(functions=["exact"]), TaskConfig()).score
    assert score(graders.RewardInput("?", completion, "", {"answer": answer})) == right


@pytest.mark.parametrize(
    ("completion", "answer", "right"),
    [
        ("\\boxed{0.5}", "\\frac{1}{2}", 1), ("\\boxed{0.4}", "\\frac{1}{2}", 0), ("x is $5$", "x=5", 1),
        ("<answer>1234</answer>", "1,234", 1), ("first 3, then the answer is 72.", "why\n#### 72", 1),
        ("<think>7", "7", 0), ("<think>8</think> \\boxed{7}", 7, 1), ("\\boxed{2\\sqrt{3}}", "\\sqrt{12}", 1),
        ("\\boxed{(1, 2]}", "(1,2)", 0), ("\\boxed{x^2+2x+1}", "$(x+1)^2$", 1), ("", "7", 0),
        ("no idea", "7", 0),
    ],
)  # fmt: skip
def test_math(completion, answer, right):
    score = graders.load("math", RewardConfig(functions=["math"]), TaskConfig()).score
    assert score(graders.RewardInput("?", completion, "", {"answer": answer})) == right


def test_thinking_that_the_prompt_opened_is_not_graded():
    wrong = ["Is it <answer>42</answer>? Let me", "42", "", "<think>42", "<answer>42</answer></think> It is 7."]
    right = ["7? No.</think><answer>42</answer>", "7</think> 8 <think> 9 </think><answer>42</answer>"]
    source, columns = "reasoning_gym:count_bits", {"question": "?", "answer": "42", "metadata": {}}
    with named("task", "exact", "math", source=source) as rewards:
        scored = rewards.score(
            [rollout(completion, 0, source, opens_thinking=True, **columns) for completion in wrong + right]
        )
        closed = rewards.score([rollout(wrong[0], 0, source, **columns)])
    assert [list(r.reward_parts.values()) for r in scored] == [[0, 0, 0]] * 5 + [[1, 1, 1]] * 2
    assert list(closed[0].reward_parts.values()) == [1, 1, 1]


def test_math_that_never_ends_costs_its_own_completion():
    tower = "\\boxed{9^{9^{9^{9}}}}"
    got, errors = outcome(named("math", timeout=1.0), "\\boxed{7}", tower, "\\boxed{8}", answer="7")
    assert got == [1, None, 0]
    assert errors == [None, "math: took longer than 1 s", None]


def test_an_unreadable_right_answer_is_an_error():
    got, errors = outcome(named("math", "exact"), "7", answer=" ")
    assert got == [None]
    assert errors == ["math: ValueError: column 'answer' is empty; exact: ValueError: column 'answer' is empty"]


@pytest.mark.parametrize(
    ("grader", "completions", "rewards", "error"),
    [
        ("length", ["", "ab"], [0, 2], None),
        (
            "raises",
            ["1", "x", "3"],
            [1, None, 3],
            "raises: ValueError: could not convert string to float: 'x'",
        ),
        ("one_short", ["a", "b", "c"], [1, 1, 1], None),
        ("not_a_list", ["a"], [None], "returned a float, expected a list of 1 numbers or None"),
        (
            "odd_values",
            ["true", "nan", "inf", "text", "list"],
            [1, None, None, None, None],
            "not a finite number",
        ),
        ("odd_values", ["true", "none"], [1, None], "no reward function had an opinion"),
        ("hangs", ["a", "hang", "b", "c"], [1, None, 1, 1], "hangs: took longer than 0.2 s"),
        ("hangs_in_c", ["hang", "b"], [None, 1], "took longer than 0.2 s"),
        ("dies", ["a", "exit", "b"], [1, None, 1], "dies: its process died (exit status 3)"),
        ("dies", ["segfault", "a"], [None, 1], "dies: its process died (SIGSEGV)"),
        ("dies", ["quit", "a"], [None, 1], "dies: SystemExit: no more"),
        ("talks", ["a", "b"], [2, 2], None),
        ("judges", ["a", "b"], [1, 1], None),
        ("judges", ["a", "refuse", "b", "hang"], [1, None, 1, None], "judges: "),
        ("sees_torch", ["a"], [0], None),
    ],
)
def test_functions_in_workers(grader, completions, rewards, error):
    got, errors = outcome(named(grader, timeout=0.2), *completions)
    assert got == rewards
    for reward, problem in zip(got, errors):
        assert (problem is None) if reward is not None else (error in problem)


def test_a_function_gets_the_columns_that_it_names():
    got, _ = outcome(named("wants_answer"), "a", "b", answer="b", other={"anything": [1, None]})
    assert got == [0, 1]


def test_weights_and_parts():
    rewards = named("length", "odd_values", "length", weights=[2.0, 10.0, -0.5])
    with rewards:
        scored = rewards.score([rollout("true"), rollout("none"), rollout("nan")])
    assert scored[0].reward_parts == {"length": 4, "odd_values": 1, "length_2": 4}
    assert [r.reward for r in scored] == [2 * 4 + 10 - 2, 2 * 4 - 2, None]
    assert scored[2].reward_parts == {"length": 3, "odd_values": None, "length_2": 3}


def test_a_call_that_hung_is_killed_with_its_children(tmp_path):
    path = tmp_path / "pid"
    assert outcome(named("leaves_child", timeout=0.2), "a", path=str(path))[0] == [None]
    assert ended(int(path.read_text()))


def test_the_worker_goes_on_after_a_hang():
    with named("hangs", "process_id", timeout=0.2) as rewards:
        first = rewards.score([rollout("a"), rollout("hang")])
        again = rewards.score([rollout("a")])
    assert first[1].error == "hangs: took longer than 0.2 s"
    assert again[0].error is None


def test_not_every_completion_may_hang(monkeypatch):
    monkeypatch.setattr(channels, "MAX_LOST", 2)
    _, errors = outcome(named("hangs", timeout=0.1), *["hang"] * 50)
    assert errors[1] == "hangs: took longer than 0.1 s"
    assert errors[2:] == ["hangs: not scored: 2 calls before it hung or crashed"] * 48


def test_several_workers_share_whole_groups():
    with named("process_id", "length", workers=2) as rewards:
        completions = [rollout("x" * i, number=i // 4) for i in range(20)]
        scored = rewards.score(completions)
        alone = rewards.score(completions[:1])
        assert rewards.score([]) == []
    assert [r.reward_parts["length"] for r in scored] == list(range(20))
    groups = [{r.reward_parts["process_id"] for r in scored[i : i + 4]} for i in range(0, 20, 4)]
    assert all(len(group) == 1 for group in groups)
    assert alone[0].reward_parts["length"] == 0


def test_progress_counts_completions():
    counts = []
    with named("raises", "length") as rewards:
        rewards.score([rollout(completion) for completion in ("1", "x", "2")], counts.append)
    assert counts == sorted(counts) and counts[-1] == 3


# Python callables, in this process


def in_process(*functions, **config):
    return Rewards(RewardConfig(**config), TaskConfig(), functions)


def test_closures_lambdas_and_async_functions():
    calls = []

    def closure(prompts, completions, **columns):
        calls.append((prompts, columns))
        return [1, None]

    async def judge(prompts, completions, answer):
        await asyncio.sleep(0.01)
        return [float(c == a) for c, a in zip(completions, answer)]

    rewards = in_process(closure, judge, lambda prompts, completions: [0.5] * len(completions))
    with rewards:
        scored = rewards.score([rollout("a", prompt="p", answer="a"), rollout("b", prompt="q", answer="a", extra=3)])
    assert [r.reward_parts for r in scored] == [
        {"closure": 1, "judge": 1, "lambda": 0.5},
        {"closure": None, "judge": 0, "lambda": 0.5},
    ]
    assert [r.reward for r in scored] == [2.5, 0.5]
    assert calls == [(["p", "q"], {"answer": ["a", "a"], "extra": [None, 3]})]


def test_callables_that_fail():
    async def judge(prompts, completions, **columns):
        if "hang" in completions:
            await asyncio.sleep(1000)
        return [1 / ("zero" not in completions)] * len(completions)

    def hangs(prompts, completions, **columns):
        if "hang" in completions:
            time.sleep(3)
        return [1.0] * len(completions)

    for function in (judge, hangs):
        got, errors = outcome(in_process(function, timeout=0.2), "a", "hang", "b")
        assert got == [1, None, 1]
        assert errors[1].endswith("took longer than 0.2 s")
    got, errors = outcome(in_process(judge), "a", "zero", "b")
    assert (got, errors[1]) == ([1, None, 1], "judge: ZeroDivisionError: division by zero")


def test_an_async_function_may_keep_what_belongs_to_its_loop():
    loops = set()

    async def judge(prompts, completions, **columns):
        loops.add(asyncio.get_running_loop())
        return [1.0]

    with in_process(judge) as rewards:
        for _ in range(3):
            rewards.score([rollout("a")])
    assert len(loops) == 1


def test_a_failed_batch_of_async_calls_is_repeated_all_at_once():
    at_work = most = 0

    async def judge(prompts, completions, **columns):
        nonlocal at_work, most
        if len(completions) > 1:
            raise ConnectionError
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(0.05)
        at_work -= 1
        return [1.0]

    assert outcome(in_process(judge), *"abcdefgh")[0] == [1.0] * 8
    assert most == 8


# A call for many completions that fails is not paid for twice in every step


def sizes(tmp_path):
    """How many completions each call of graders.slow_for_many got since the last look."""
    path = tmp_path / "calls"
    numbers = [int(line) for line in path.read_text().split()]
    path.unlink()
    return numbers


@pytest.mark.parametrize("grader", ["slow_for_many", "slow_for_many_async"])
def test_a_batch_that_timed_out_is_not_tried_again(grader, tmp_path):
    completions = [rollout(completion, path=str(tmp_path / "calls")) for completion in "abc"]
    with named(grader, timeout=0.2) as rewards:
        with pytest.warns(UserWarning) as warned:
            assert [r.reward for r in rewards.score(completions)] == [1, 1, 1]
        assert sizes(tmp_path) == [3, 1, 1, 1]
        with warnings.catch_warnings(action="error"):
            assert [r.reward for r in rewards.score(completions)] == [1, 1, 1]
        assert sizes(tmp_path) == [1, 1, 1]
    (warning,) = warned
    assert Path(gspo.__file__).parent in Path(warning.filename).parents  # so that the run's log takes it
    assert str(warning.message) == (
        f"reward {grader}: a call for 3 completions took longer than 0.2 s (reward.timeout) and was given up. From now on "
        "each completion gets a call of its own. Raise reward.timeout to wait for all at once, or make the function handle "
        "a single bad completion"
    )


def test_async_calls_stay_concurrent_after_a_time_out():
    at_work, most, calls = 0, 0, []

    async def judge(prompts, completions, **columns):
        nonlocal at_work, most
        calls.append(len(completions))
        at_work += 1
        most = max(most, at_work)
        try:
            await asyncio.sleep(0.05 if len(completions) == 1 else 1000)
        finally:
            at_work -= 1
        return [1.0] * len(completions)

    with in_process(judge, timeout=0.3) as rewards:
        for expected in ([4, 1, 1, 1, 1], [1, 1, 1, 1]):
            most = 0
            assert [r.reward for r in rewards.score([rollout(completion) for completion in "abcd"])] == [1] * 4
            assert (calls, most) == (expected, 4)
            calls.clear()


def test_an_async_function_that_blocks_ends_one_by_one(monkeypatch):
    monkeypatch.setattr(channels, "GRACE", 0.1)
    calls = []

    async def judge(prompts, completions, step):
        calls.append((step[0], completions))
        time.sleep(0.6 if len(completions) > 1 or len(asyncio.all_tasks()) > 1 else 0)
        return [1.0] * len(completions)

    with in_process(judge, timeout=0.1) as rewards:
        with pytest.warns(UserWarning) as warned:
            assert [r.reward for r in rewards.score([rollout(completion, step=1) for completion in "ab"])] == [1, 1]
        assert len(warned) == 1
        assert [r.reward for r in rewards.score([rollout(completion, step=2) for completion in "ab"])] == [1, 1]
    assert [completions for step, completions in calls if step == 2] == [["a"], ["b"]]


def test_a_batch_that_raised_is_tried_again():
    calls = []

    def judge(prompts, completions, **columns):
        calls.append(len(completions))
        return [float(completion) for completion in completions]

    with in_process(judge) as rewards:
        with pytest.warns(
            UserWarning, match="reward judge: a call for 2 completions failed .ValueError: .*'x'.*None for it"
        ):
            rewards.score([rollout("1"), rollout("x")])
        with warnings.catch_warnings(action="error"):
            rewards.score([rollout("x"), rollout("2")])
            rewards.score([rollout("3"), rollout("4")])
    assert calls == [2, 1, 1, 2, 1, 1, 2]


def test_a_function_may_have_time_outs_of_its_own():
    """They are failures like others: the call did not exceed reward.timeout."""

    async def judge(prompts, completions, **columns):
        if "x" in completions:
            raise TimeoutError("the judge's line is busy")
        return [1.0] * len(completions)

    with in_process(judge) as rewards:
        scored = rewards.score([rollout("1"), rollout("x")])
        assert scored[1].error == "judge: TimeoutError: the judge's line is busy"
        assert rewards.ways["judge"].level == graders.BATCH


def test_a_single_completion_that_hangs_says_nothing_about_many():
    with named("hangs", timeout=0.1) as rewards, warnings.catch_warnings(action="error"):
        assert rewards.score([rollout("hang")])[0].error == "hangs: took longer than 0.1 s"
        assert rewards.ways["hangs"].level == graders.BATCH


# Functions that compare the completions to a prompt


def shapes(rewards, count=2):
    """The rewards of `count` groups of four, each its prompt's completions in one call."""
    with rewards:
        scored = rewards.score([rollout(completion, i // 4) for i, completion in enumerate("abcdefgh" * 2)][: 4 * count])
    return [r.reward for r in scored], [r.error for r in scored]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_function_by_group_sees_whole_groups_alone(workers):
    assert shapes(named("compares", workers=workers), 4)[0] == [0, 1, 2, 3] * 4


@pytest.mark.parametrize("kind", ["hang", "exit", "raise"])
def test_a_failed_group_is_left_out_as_a_whole(kind):
    with named("compares", timeout=0.3, workers=1) as rewards:
        scored = rewards.score(
            [rollout(completion, i // 4) for i, completion in enumerate([*"abcd", *"ef", kind, "h", *"ijkl"])]
        )
        again = rewards.score([rollout(completion, i // 4) for i, completion in enumerate([kind, *"bcd", *"efgh"])])
    assert [r.reward for r in scored] == [0, 1, 2, 3, None, None, None, None, 0, 1, 2, 3]
    assert [r.reward for r in again] == [None] * 4 + [0, 1, 2, 3]
    assert all(r.error.startswith("compares: ") for r in scored[4:8])


def test_async_groups_are_scored_at_the_same_time():
    at_work, most = 0, 0

    @gspo.by_group
    async def compares(prompts, completions, **columns):
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(0.05)
        at_work -= 1
        if "f" in completions:
            raise ConnectionError
        return [float(sorted(completions).index(c)) for c in completions]

    assert shapes(in_process(compares))[0] == [0, 1, 2, 3] + [None] * 4
    assert most == 2


def test_a_group_whose_process_died_between_calls_is_scored_whole():
    with named("compares", workers=1, timeout=0.3) as rewards:
        rewards.score([rollout(completion) for completion in "ab"])
        rewards.ways["compares"].level = graders.SINGLY
        os.kill(rewards.workers[0].process.pid, signal.SIGKILL)
        scored = rewards.score([rollout(completion, i // 2) for i, completion in enumerate("abcd")])
    assert [r.reward for r in scored] == [None, None, 0, 1]


def test_what_a_callable_says_of_itself():
    class Own:
        spoken, limit, needs = True, 5.0, {"gold": "own.column"}
        counted = 0

        def __call__(self, prompts, completions, gold):
            self.counted += len(completions)
            time.sleep(0.5)
            return [float(c == g) for c, g in zip(completions, gold)]

        def counts(self):
            return {"seen": float(self.counted)}

    with in_process(Own(), timeout=0.1) as rewards:
        scored = rewards.score([rollout("<think>no</think>yes", gold="yes")])
        assert scored[0].reward == 1
        assert rewards.counts() == {"scoring/Own/seen": 1}
        with pytest.raises(ValueError, match=r"no column 'gold' .* set own.column to one of: gole"):
            rewards.check([rollout("", gole="").prompt])


def test_tensors_and_arrays_are_lists_of_numbers():
    import numpy
    import torch

    for make in (torch.tensor, numpy.array):
        assert outcome(in_process(lambda prompts, completions, m=make: m([1.0, 2.0])), "a", "b")[0] == [1, 2]


# What is wrong with every completion stops the run


@pytest.mark.parametrize(
    ("reward", "task", "functions", "message"),
    [
        (
            {},
            {"source": "rows.jsonl"},
            (),
            'rows.jsonl has no scorer of its own for "task"; use "exact" or "math"',
        ),
        ({}, {"source": "reasoning_gym:gcd", "eval_source": "a.csv"}, (), "a.csv has no scorer of its own"),
        ({}, {}, (), "this data set has no scorer of its own"),
        ({"functions": []}, {}, (), "there is no reward function"),
        (
            {"functions": ["exakt"]},
            {},
            (),
            "'exakt' is none of task, exact, math, model, judge, module:function, did you mean exact",
        ),
        (
            {"functions": ["exact"], "weights": [1.0]},
            {},
            (len,),
            r"2 reward functions need as many weights: exact, len",
        ),
    ],
)
def test_bad_settings(reward, task, functions, message):
    with pytest.raises(ValueError, match=message):
        Rewards(RewardConfig(**reward), TaskConfig(**task), functions)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tests.rewards.graders:lenght", "tests.rewards.graders has no function 'lenght', did you mean length?"),
        ("tests.rewards.graders:not_a_function", "not_a_function is a int, not a function"),
        ("no_such_module:f", "there is no module 'no_such_module' in"),
        ("tests.rewards.graders:", "expected module:function"),
    ],
)
def test_functions_that_cannot_be_loaded(name, message):
    with Rewards(RewardConfig(functions=[name]), TaskConfig()) as rewards, pytest.raises(ValueError) as error:
        rewards.score([rollout("a")])
    assert message in str(error.value) and "reward.functions" in str(error.value)


def test_a_missing_answer_column():
    with (
        named("exact") as rewards,
        pytest.raises(
            ValueError,
            match=r"there is no column 'answer'.*did you mean answr\?; set reward\.answer_col",
        ),
    ):
        rewards.check([rollout("a", number=3, answr=1).prompt])


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


# Processes


def run(tmp_path, script):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(script))
    return subprocess.Popen([sys.executable, path], cwd=ROOT, stdout=subprocess.PIPE, text=True)


START = """
    import os, signal, sys, threading, time
    sys.path.insert(0, os.getcwd())
    from gspo.config.rewards import RewardConfig
    from gspo.config.rollout import TaskConfig
    from gspo.rewards.scorer import Rewards
    from tests.data.tools import rollout
    config = RewardConfig(functions=["tests.rewards.graders:hangs"], timeout=60.0)
    print("begin", flush=True)
    rewards = Rewards(config, TaskConfig())
"""


def test_a_script_without_a_main_guard_runs_once(tmp_path):
    with run(tmp_path, START + "    print(rewards.score([rollout('a')])[0].reward)") as process:
        assert process.communicate()[0].split() == ["begin", "1.0"]


def ended(pid):
    for _ in range(100):
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.skipif(not os.path.exists("/proc"), reason="reads /proc")
def test_no_worker_outlives_its_parent(tmp_path):
    with run(
        tmp_path,
        START + "    rewards.wait(); print(rewards.workers[0].process.pid, flush=True); time.sleep(60)",
    ) as p:
        p.stdout.readline()
        worker = int(p.stdout.readline())
        p.send_signal(signal.SIGKILL)
    assert ended(worker)


def test_ctrl_c_while_scoring_leaves_nothing_behind(tmp_path):
    script = (
        START
        + """
    rewards.wait()
    old = rewards.workers[0].process
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        rewards.score([rollout("hang"), rollout("a")])
    except KeyboardInterrupt:
        print("interrupted", old.poll() is not None)
    print(rewards.score([rollout("a")])[0].reward, threading.active_count() <= 2)
    rewards.close()
    """
    )
    with run(tmp_path, script) as process:
        assert process.communicate()[0].split() == ["begin", "interrupted", "True", "1.0", "True"]


def test_a_late_reader_of_a_closed_worker_takes_nothing_of_the_next():
    with named("length") as rewards:
        rewards.wait()
        old = rewards.workers[0]
        number = old.connection.fileno()
        rewards.close()
        rewards._start()  # as after Ctrl-C, while a thread may still be about to read
        assert rewards.workers[0].connection.fileno() != number
        with pytest.raises(channels.Lost, match="SIGKILL"):
            old.receive(1.0)
        assert rewards.score([rollout("a")])[0].reward == 1


def test_rewards_start_in_the_background():
    with named("length") as rewards:
        assert not rewards.workers[0].ready
        rewards.wait()
        assert rewards.workers[0].ready
    assert rewards.workers[0].process.poll() is not None
