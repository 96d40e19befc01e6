"""Environments: whole runs on a tiny model, tools that go wrong, limits, and failures as data."""

import asyncio
import json
import sys
import threading
from copy import copy
from types import SimpleNamespace

import pytest
import torch

import gspo
from gspo.agents.batching import Batching
from gspo.agents.environment import Step, ToolEnvironment
from gspo.agents.episodes import Episodes
from gspo.agents.tool_calls import UnknownConvention
from gspo.backends.hf.sampler import HFSampler
from gspo.config.rollout import TaskConfig
from gspo.data.chat_template import Encoder
from gspo.interfaces import RewardsFailed
from gspo.types import Prompt, Sampling
from tests.agents.talking import tokenizer
from tests.agents.test_chat import Says
from tests.leap import leap
from tests.logged import logs
from tests.patience import PATIENCE
from tests.serving.served import tiny

ROW = {"prompt": "what is in the box", "value": "42"}


class Scripted(Says):
    """A sampler of whole completions, from a script."""

    def begin(self, so_far, seed, sampling):
        if not self.script:
            self.script.append(("nothing", "eos"))
        return super().begin(so_far, seed, sampling)


class Box(ToolEnvironment):
    """Has tools that work, fail, and hang."""

    tool_timeout = PATIENCE

    def functions_of(self):
        return [self.lookup, self.aside]

    def lookup(self, key: str) -> str:
        """Looks up.

        Args:
            key: what
        """
        return {"apples": self.row["value"]}[key]

    async def aside(self, number: int) -> int:
        """Adds.

        Args:
            number: what
        """
        return number + 1

    async def end(self, text):
        if text == "fall over":
            raise RuntimeError("the environment fell over")
        if text == "leave":
            sys.exit(0)
        if text == "close":  # as a session that closes cancels its own tasks
            session = asyncio.ensure_future(asyncio.sleep(1e6))
            asyncio.get_running_loop().call_soon(session.cancel)
            await session
        if text == "sleep":
            leap(asyncio.get_running_loop())
            await asyncio.sleep(1e6)
        return float(self.row["value"] in text)


class Told(Box):
    async def start(self):
        return [{"role": "user", "content": self.row["prompt"]}]


class Quiz:
    """Without tools: two questions, each turn rewarded."""

    tools = ()

    def __init__(self, row):
        self.asked = 0

    async def start(self):
        return [{"role": "user", "content": "say a"}]

    async def step(self, turn):
        self.asked += 1
        letters = sum(c.islower() for c in turn["content"]) / max(1, len(turn["content"]))
        return Step(
            [{"role": "user", "content": "again"}], reward=letters, done=self.asked == 2, metrics={"letters": letters}
        )


class Shut(Quiz):
    """Begins for the second, third and fourth completion to a prompt alone."""

    made = 0

    def __init__(self, row):
        super().__init__(row)
        Shut.made += 1
        if Shut.made % 4 == 1:
            raise ValueError("no such room")


def played(*script, make=Box, prompt=ROW["prompt"], columns=ROW, context=4096, template=None, times=1, **limits):
    """The last of so many episodes."""
    sampler = Scripted("chatml", *script)
    task = TaskConfig(**{"max_turns": 4, "step_timeout": PATIENCE} | limits)
    own = copy(tokenizer("chatml"))
    own.chat_template = template or own.chat_template
    encoder = Encoder(own, task)
    prompt = Prompt("0", prompt, tuple(encoder.prompt(prompt)[0]), columns)
    with Episodes(sampler, sampler, encoder, context, task, make) as episodes:
        *_, rollout = episodes.generate([prompt], times, Sampling(50, stop_ids=(tokenizer("chatml").eos_token_id,)))
    return rollout


def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>", "eos"


def test_a_tool_is_used_and_the_answer_rewarded():
    rollout = played(call("lookup", key="apples"), call("aside", number=41), ("it is 42", "eos"))
    assert rollout.reward == 1.0 and rollout.turn_rewards == (0.0, 0.0, 1.0) and rollout.error is None
    assert rollout.turn.unique().tolist() == [-1, 0, 1, 2] and rollout.parent is None  # one row, nothing read twice
    assert [message["content"] for message in rollout.dialogue if message["role"] == "tool"] == ["42", "42"]
    assert rollout.reward_parts == {"reward": 1.0, "turns": 3.0, "tools/calls": 2}
    assert rollout.sampled.sum() == sum(rollout.turn >= 0)


def test_tools_of_a_template_that_is_not_understood_end_the_run():
    """No episode would see a call, so it is no failure of one."""
    other = "{% for m in messages %}{{ m.content }}{% endfor %}"
    with pytest.raises(UnknownConvention, match="is not known"):
        played(template=other)
    assert played(("no lower case: 7", "eos"), make=Quiz, template=other).error is None  # has none


def test_limits_cut_an_episode_off():
    rollout = played(*[call("lookup", key="apples")] * 9, max_turns=3)
    assert rollout.stop == "length" and rollout.reward == 0.0 and rollout.reward_parts["turns/limit"] == 1
    assert len(rollout.turn_rewards) == 3
    rollout = played(*[call("lookup", key="apples")] * 9, max_turns=9, context=1200)
    assert rollout.stop == "length" and rollout.reward_parts["turns/context_full"] == 1


def unmade(row):
    raise ValueError("no such room")


def test_an_environment_that_fails_is_data():
    for make, said, why in (
        (Box, "fall over", "RuntimeError: the environment fell over"),
        (Box, "sleep", "timed out"),
        (Box, "leave", "SystemExit: 0"),
        (Box, "close", "CancelledError"),
        (unmade, "", "no such room"),
    ):
        rollout = played((said, "eos"), make=make)
        assert rollout.reward is None and why in rollout.error
        assert len(rollout.dialogue) >= 1 if said else not rollout.sampled.any()

    class Pays(Box):
        async def end(self, text):
            return -1e10

    rollout = played(make=Pays)
    assert rollout.reward is None and rollout.error.startswith("environment: its reward is ")


def trained(folder, environment, steps=2, resume=False, rows=8, **sections):
    """A run in an environment."""
    hf = tiny()
    return gspo.train(
        hf.model, [{"prompt": f"say a, {i}"} for i in range(rows)], tokenizer=hf.tokenizer, resume=resume,
        train={"steps": steps, "save_every": 4}, log={"dir": str(folder)}, task={"environment": f"{__name__}:{environment}"},
        algorithm={"name": "gspo_token", "credit": "turn", "mini_batches": 1},
        **{"rollout": {"num_prompts": 2, "num_generations": 4, "max_completion_length": 8}} | sections,
    )  # fmt: skip


def lines(folder, name):
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def test_a_run_goes_on_where_episodes_cannot_begin(tmp_path):
    assert trained(tmp_path / "run", "Shut").metrics["step"] == 2
    rollouts, events = (lines(tmp_path / "run", name) for name in ("rollouts", "events"))
    assert any("no such room" in (line["error"] or "") for line in rollouts)
    (prompt,) = (event for event in events if event["kind"] == "prompt")  # what stood before the first turn
    assert prompt["step"] == 1 and "say a" in prompt["text"]
    unanswered = [line for line in rollouts if not line["completion"]]
    assert unanswered and not any("tokens" in line for line in unanswered) and any("tokens" in line for line in rollouts)


class Locked(Quiz):
    """Cannot be begun at all."""

    async def start(self):
        raise OSError("no key")


def test_a_run_whose_episodes_all_fail_ends_at_its_first_step(tmp_path):
    with pytest.raises(RewardsFailed, match=r"step 1: none of 8 .*environment: OSError: no key"):
        trained(tmp_path / "run", "Locked")
    assert not (tmp_path / "run" / "model").exists()


def test_what_an_episode_changes_in_its_row_no_other_sees():
    class Takes(Box):
        async def start(self):
            self.row["parts"].append("taken")
            self.row["prompt"].append({"role": "user", "content": "again"})
            return self.row["prompt"]

        async def end(self, text):
            return float(len(self.row["parts"]) + 10 * len(self.row["prompt"]))

    messages = [{"role": "user", "content": "hello"}]
    columns = {"parts": [], "value": ""}
    assert played(make=Takes, prompt=messages, columns=columns, times=2).reward == 21.0
    assert columns["parts"] == [] and len(messages) == 1


def test_the_row_has_the_prompt_by_its_usual_name_too():
    """ToolEnvironment reads `prompt`, whatever task.prompt_column says."""
    assert played(("it is 42", "eos"), prompt_column="question").reward == 1.0
    told = played(("it is 42", "eos"), prompt_column="question", columns={**ROW, "prompt": "of the user"}, make=Told)
    assert told.dialogue[0]["content"] == "of the user"


def test_a_metric_named_like_the_episodes_own_numbers_is_left_out_and_told_once():
    class Counts(Quiz):
        async def step(self, turn):
            return Step(reward=1.0, done=True, metrics={"looks": 3.0, "turns": 9.0, "reward": 0.25})

    with logs() as told:
        rollout = played(("a", "eos"), make=Counts, times=3)
    assert rollout.reward == 1.0 and rollout.reward_parts == {"reward": 1.0, "turns": 1.0, "looks": 3.0}
    assert sorted(one.split(",")[0].split()[-1] for one in told) == ["'reward'", "'turns'"]


def test_whole_runs_learn_from_an_environment_and_resume(tmp_path):
    sections = {
        "rollout": {"num_prompts": 4, "num_generations": 8, "max_completion_length": 8}, "optimizer": {"lr": 1e-2},
        "eval": {"every": 8, "num_prompts": 4},
    }  # fmt: skip
    trained(tmp_path / "run", "Quiz", 8, rows=40, **sections)
    metrics = lines(tmp_path / "run", "metrics")
    steps = [line for line in metrics if "loss" in line]
    assert all(line["mismatch/prob_max"] < 1e-4 and line["reward/turns"] == 2 for line in steps)
    assert steps[-1]["reward"] > steps[0]["reward"] and metrics[-1]["eval/reward"] > 0
    assert all(len(row["advantage"]) == 2 and len(row["dialogue"]) == 4 for row in lines(tmp_path / "run", "rollouts"))
    again = trained(tmp_path / "run", "Quiz", 9, resume=True, rows=40, **sections)
    assert again.finished and again.metrics["step"] == 9


def test_turns_are_named_the_same_in_every_run():
    """Some templates show the model the ids of its tool calls, and ids come from these."""
    seen = []

    class Noting(Box):
        async def step(self, turn):
            seen.append([called["id"] for called in turn.get("tool_calls", ())])
            return await super().step(turn)

    for _ in range(2):
        played(call("lookup", key="apples"), call("aside", number=41), ("it is 42", "eos"), make=Noting)
    assert seen[:3] == seen[3:] and seen[0] != seen[1] and len(seen[0]) == 1


def test_the_same_seed_plays_the_same_episodes():
    hf = tiny()
    sampler, task = HFSampler(hf), TaskConfig(max_turns=4)
    encoder = Encoder(hf.tokenizer, task)
    prompts = [Prompt(str(i), f"say {i}", (5, 6)) for i in range(3)]
    with Episodes(sampler, Batching(sampler), encoder, 512, task, Quiz) as episodes:
        first, second = (
            episodes.generate(prompts, 4, Sampling(6, seed=3, stop_ids=(hf.tokenizer.eos_token_id,))) for _ in range(2)
        )
    assert all(torch.equal(a.tokens, b.tokens) for a, b in zip(first, second))
    assert len({tuple(r.tokens.tolist()) for r in first}) > 6


def test_the_sampler_rests_when_no_turn_is_being_sampled():
    """A turn that an environment gave up would else be sampled while the learner changes the weights."""
    lock, held = threading.Lock(), []
    sampler = SimpleNamespace(rest=lambda: held.append(lock.locked()))
    task = TaskConfig()
    with Episodes(sampler, SimpleNamespace(still=lock), Encoder(tokenizer("chatml"), task), 512, task, Quiz) as episodes:
        episodes.rest()
    assert held == [True] and not lock.locked()
