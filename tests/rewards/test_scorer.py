import time
from collections import Counter
from contextlib import closing

import pytest

from gspo.config.rewards import RewardConfig
from gspo.config.rollout import TaskConfig
from gspo.rewards import channels
from gspo.rewards.graders import Traits
from gspo.rewards.scorer import Rewards
from tests.data.tools import rollout
from tests.patience import PATIENCE
from tests.rewards.classifiers import reward_model, saved
from tests.rewards.endpoint import listening, material, said
from tests.rewards.judging import KEY, judge
from tests.rewards.tools import START, in_process, named, run


def test_weights_and_parts():
    counts = []
    with named("length", "odd_values", "length", weights=[2.0, 10.0, -0.5]) as rewards:
        scored = rewards.score([rollout("true"), rollout("none"), rollout("nan")], counts.append)
    assert counts == sorted(counts) and counts[-1] == 3
    assert scored[0].reward_parts == {"length": 4, "odd_values": 1, "length_2": 4}
    assert scored[0].reward_weights == (2.0, 10.0, -0.5)
    assert [r.reward for r in scored] == [2 * 4 + 10 - 2, 2 * 4 - 2, None]
    assert scored[2].reward_parts == {"length": 3, "odd_values": None, "length_2": 3}


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


def test_what_a_callable_of_gspo_says_of_itself(monkeypatch):
    """In one attribute: all others are a user's own (they were read as traits before)."""
    monkeypatch.setattr(channels, "GRACE", 0.1)

    class Own:
        def __init__(self):
            self.traits = Traits(spoken=True, limit=PATIENCE, needs={"gold": "own.column"}, counts=self.counts)
            self.counted = 0

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


def test_the_attributes_of_a_users_object_are_his_own():
    class Users:
        wait, needs, traits, spoken, complete = 0.5, ["gold"], {"kind": "strict"}, False, True

        def __init__(self):
            self.counts, self.limit = Counter(), 1e-9

        def __call__(self, prompts, completions):
            return [None if completion == "?" else 1.0 for completion in completions]

    with in_process(Users(), lambda completions: [1.0] * len(completions)) as rewards:
        rewards.wait()
        assert [one.reward for one in rewards.score([rollout("a"), rollout("?")])] == [2, 1]
        assert rewards.counts() == {}


def one(prompts, completions):
    return [1.0] * len(completions)


def test_without_the_score_of_a_judge_there_is_no_reward(monkeypatch):
    """The sum of the others would be another reward. A group of one, which a judge does not compare, is no failure."""
    monkeypatch.setenv("JUDGE_KEY", KEY)

    def answer(body):
        return said("?") if material(body)["REPLY"] == "odd" else said('{"reason": "", "score": 5}')

    completions = [rollout(text) for text in ("a", "odd", "b")]
    none = "judge: it gave no score"
    with listening(answer) as endpoint, closing(judge(endpoint)) as judged:
        for functions, weights, rewards_, errors in (
            ((one, judged), [], [1.5, None, 1.5], [None, none, None]),
            ((one, judged), [1.0, 0.0], [1, 1, 1], [None] * 3),  # only watched
            ((judged,), [], [0.5, None, 0.5], [None, "no reward function scored it", None]),
        ):
            with in_process(*functions, weights=weights) as rewards:
                scored = rewards.score(completions)
            assert [(each.reward, each.error) for each in scored] == [*zip(rewards_, errors)]
        with closing(judge(endpoint, mode="rank")) as ranks, in_process(one, ranks) as rewards:
            assert rewards.score([rollout("odd")])[0].reward == 1


def test_without_the_score_of_a_reward_model_there_is_no_reward(tmp_path):
    with in_process(one, reward_model(saved(tmp_path))) as rewards:
        short, long = rewards.score([rollout("a"), rollout("b" * 90)])
    assert short.error is None and (long.reward, long.error) == (None, "model: it gave no score")


def test_bad_settings(subtests):
    known = "'exakt' is none of task, exact, math, code, model, judge, did you mean exact"
    for reward, task, functions, message in (
        ({}, {"source": "reasoning_gym:gcd", "eval_source": "a.csv"}, (), "a.csv has no scorer of its own"),
        ({}, {}, (), "this data set has no scorer of its own"),
        ({"functions": []}, {}, (), "there is no reward function"),
        ({"functions": ["exakt"]}, {}, (), known),
        ({"functions": ["exact"], "weights": [1.0]}, {}, (len,), r"2 reward functions need as many weights: exact, len"),
        (
            {"functions": ["exact"], "env_passthrough": ["NO_KEY"]},
            {},
            (),
            "reward.env_passthrough: no environment .* 'NO_KEY'",
        ),
    ):
        with subtests.test(message=message), pytest.raises(ValueError, match=message):
            Rewards(RewardConfig(**reward), TaskConfig(**task), functions)


def test_a_weighted_sum_has_bounds_too():
    with named("length", "length", weights=[1e6, 1e6]) as rewards:
        scored = rewards.score([rollout("a"), rollout("a" * 600)])
    assert scored[0].reward == 2e6
    assert scored[1].reward is None and "the weighted sum is 1.2e+09, which is beyond 1e+09: scale" in scored[1].error


def test_ctrl_c_while_scoring_leaves_nothing_behind(tmp_path, monkeypatch):
    """In a script without a main guard, which runs once."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    (tmp_path / "hangs").mkdir()
    script = (
        START
        + """
    rewards.wait()
    old = rewards.workers[0].process.popen
    def interrupt():
        while not os.listdir(os.environ["TMPDIR"] + "/hangs"):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=interrupt).start()
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
