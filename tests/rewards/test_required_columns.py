"""What rewards need of the data is told before anything is sampled."""

import functools
import math

import pytest

from tests.data.tools import rollout
from tests.rewards.tools import in_process, named, outcome


def prompts(*rows, task=""):
    return [rollout("", number, task, **row).prompt for number, row in enumerate(rows)]


def wrong(prompt, completion):
    """Names that gspo does not have."""


def trl(prompts, completions, completion_ids, trainer_state, answer):
    """All of TRL's, and a column."""


def test_a_parameter_that_no_prompt_has_is_told_by_its_name(subtests):
    for function, row, message in (
        (wrong, {"answer": 1}, "reward wrong: it cannot be called without 'prompt', 'completion': besides prompts and "
         "completions the data has answer; rename the parameter"),
        (lambda completions, gold, **_: 0, {}, "reward lambda: .* without 'gold': .* the data has no column"),
        (trl, {"gold": 1}, "reward trl: .* without 'answer'"),
    ):  # fmt: skip
        with subtests.test(message), in_process(function) as rewards, pytest.raises(ValueError, match=message):
            rewards.check(prompts(row))


def test_what_some_prompt_has_is_there_and_a_default_is_enough():
    for function in (
        lambda prompts, completions, **columns: 0, lambda completions, answer: 0, lambda completions, gold=None: 0,
        lambda *args, **kwargs: 0, lambda **kwargs: 0, trl,
    ):  # fmt: skip
        with in_process(function) as rewards:
            rewards.check(prompts({}, {"answer": 1}))  # where files leave a column out of a row, it is None
            rewards.wait()


def judged(prompts, completions, judge):
    return [judge] * len(completions)


@functools.wraps(judged)
def judging(*args, **columns):
    return judged(*args, judge=2.0, **columns)


@functools.wraps(judged)
def with_answer(prompts, completions, answer):
    return [2.0 if answer == ["b"] else 0.0]


class Called:
    def __call__(self, prompts, completions):
        return judged(prompts, completions, 2.0)


def test_a_decorator_may_give_what_the_function_within_asks_for(subtests):
    for function in (judging, with_answer, Called(), functools.partial(judging)):
        with subtests.test(function=function), in_process(function) as rewards:
            rewards.check(prompts({"answer": "b"}))
            rewards.wait()
            scored = rewards.score([rollout("a", answer="b")])[0]
            assert (scored.error, scored.reward) == (None, 2.0)
    with in_process(with_answer) as rewards, pytest.raises(ValueError, match="without 'answer'"):
        rewards.check(prompts({"gold": 1}))


def test_a_right_answer_that_is_missing_or_that_nothing_can_equal_is_refused(subtests):
    missing = r"there is no column 'answer'.*did you mean answr\?; set reward\.answer_col"
    with named("exact") as rewards, pytest.raises(ValueError, match=missing):
        rewards.check(prompts({"answr": 1}))
    where = "prompt train-0: reward.answer_column = 'answer' "
    empty = (None, "", " \n", "nan", "why\n#### ")
    refused = dict.fromkeys(empty, f"{where}is missing .*fill it in, or leave")
    refused |= {answer: f"{where}holds a {type(answer).__name__}: .*module:func" for answer in (("7",), True, b"7")}
    of_math = dict.fromkeys(("$$", ".", r"\boxed{}", r"\boxed{nan}", r"\text{}"), f"{where}has nothing to compare")
    for name, wrong in (("exact", refused), ("math", refused | of_math)):
        with named(name) as rewards:
            for answer, message in wrong.items():
                with subtests.test(name=name, answer=repr(answer)), pytest.raises(ValueError, match=message):
                    rewards.check(prompts({"answer": answer}))
            rewards.check(prompts(*({"answer": right} for right in ("7", 7, 7.5, "None", math.inf))))
    assert outcome(named("exact"), "$$", answer="$$")[0] == [1]


def test_the_right_answers_of_a_benchmark_are_in_its_own_column(subtests):
    nested, benchmark = {"reward_model": {"ground_truth": "7"}}, "benchmark:problems.jsonl"
    for name in ("exact", "math"):
        with subtests.test(name), named(name, answer_column="reward_model.ground_truth") as rewards:
            rewards.check([*prompts(nested), *prompts({"answer": "8"}, task=benchmark)])
            scored = rewards.score([rollout("7", **nested), rollout("8", 1, benchmark, answer="8")])
            assert [one.reward for one in scored] == [1, 1]


def test_each_task_must_have_it():
    with in_process(lambda completions, gold: 0) as rewards:
        rewards.check(prompts({"gold": 1}, task="train.jsonl"))
        with pytest.raises(ValueError, match=r"without 'gold': .* eval\.jsonl has answer"):
            rewards.check(prompts({"answer": 1}, task="eval.jsonl"))


def test_a_named_function_is_asked_where_it_runs():
    told = r"reward wants_answer: it cannot be called without 'answer'"
    with named("length", "wants_answer", workers=2) as rewards:
        rewards.check(prompts({"gold": 1}))
        with pytest.raises(ValueError, match=told):
            rewards.wait()
    with named("length", "wants_answer") as rewards:
        rewards.wait()
        with pytest.raises(ValueError, match=told):
            rewards.check(prompts({"gold": 1}))
    assert outcome(named("length", "wants_answer"), "a", answer="a") == ([2.0], [None])
