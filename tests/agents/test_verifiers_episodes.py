"""Environments of `verifiers`, played for real by tiny models: tokens, rewards, tools, faults as data, whole runs."""

import asyncio
import threading
from pathlib import Path

import pytest
import torch

from gspo.agents.batching import Batching

pytest.importorskip("verifiers.v1", reason="make test-verifiers runs these")

import gspo
from gspo.agents.verifiers_episodes import VerifiersEpisodes
from gspo.backends.hf.sampler import HFSampler
from gspo.config.rollout import RolloutConfig, TaskConfig
from gspo.data.chat_template import Encoder
from gspo.data.refresh import Pool
from gspo.data.verifiers_tasks import tasks_of
from gspo.interfaces import SamplerError
from gspo.rollout.asynchronous import AsynchronousSource
from gspo.rollout.external import AlreadyScored
from gspo.rollout.stages import TASK, Curriculum
from gspo.types import Prompt, Sampling
from tests.agents.talking import tokenizer
from tests.agents.test_episodes import Scripted, call, lines
from tests.agents.test_token_tree import path
from tests.leap import leap
from tests.patience import PATIENCE
from tests.rollout.test_asynchronous_episodes import SAMPLING, Pieces, steps
from tests.rollout.test_asynchronous_episodes import exact as exact_by_version
from tests.serving.served import tiny

HERE = Path(__file__).parent / "environments"
EOS = tokenizer("chatml").eos_token_id


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    """The environments of this folder, as if installed, also for the servers of their tools."""
    monkeypatch.syspath_prepend(HERE)
    monkeypatch.setenv("PYTHONPATH", str(HERE))


def played(source, *script, n=1, prompts=1, sampler=None, context=4096, seed=0, most=200, **task):
    """Episodes of the first prompts, by a model or from a script."""
    task = TaskConfig(source=f"verifiers:{source}", **task)
    sampler = sampler or Scripted("chatml", *script)
    completer = Batching(sampler) if isinstance(sampler, HFSampler) else sampler
    encoder = Encoder(tokenizer("chatml"), task)
    rows = tasks_of(task.source, task).rows[:prompts]
    taken = [Prompt(str(i), row["prompt"], (5,), {"task": row["task"]}, task.source) for i, row in enumerate(rows)]
    with VerifiersEpisodes(sampler, completer, encoder, context, task) as episodes:
        return episodes.generate(taken, n, Sampling(most, seed=seed, stop_ids=(EOS,)))


def exact(rollout, model):
    """Each sampled token has the log-probability that the model gives it, after what it was read after."""
    assert rollout.turn is None or torch.equal(rollout.sampled, rollout.turn >= 0)
    for place in rollout.sampled.nonzero()[:, 0].tolist():
        tokens = path(rollout, place)
        with torch.no_grad():
            logits = model.model(input_ids=torch.tensor([tokens[:-1]])).logits[0, -1].float()
        assert abs(float(logits.log_softmax(-1)[tokens[-1]] - rollout.logp[place])) < 1e-4


def test_one_turn_is_exact_and_worth_what_the_rubric_says():
    hf = tiny()
    rollouts = played("vf-letters", sampler=HFSampler(hf), n=4, prompts=3, most=8)
    assert len({tuple(rollout.tokens.tolist()) for rollout in rollouts}) > 8 and len(rollouts) == 12
    for number, rollout in enumerate(rollouts):
        exact(rollout, hf)
        completion = rollout.dialogue[-1]["content"].strip()
        share, upper = completion.count("a") / max(1, len(completion)), float(any(c.isupper() for c in completion))
        assert rollout.reward == pytest.approx(share + 0.5 * upper) and rollout.error is None
        own = {"reward": rollout.reward, "turns": 1}
        assert rollout.reward_parts == own | {"share": share, "upper": upper, "length": len(completion)}
        roles = [message["role"] for message in rollout.dialogue]
        assert roles == ["system"] * (number // 4 % 2) + ["user", "assistant"]
        words = hf.tokenizer.decode(rollout.tokens[rollout.sampled]).removesuffix("<|im_end|>")
        assert words == rollout.dialogue[-1]["content"] == rollout.text


def test_the_same_seed_plays_the_same_episodes():
    first, second, other = (played("vf-letters", sampler=HFSampler(tiny()), n=3, most=6, seed=seed) for seed in (3, 3, 4))
    assert all(torch.equal(a.tokens, b.tokens) for a, b in zip(first, second))
    assert not all(torch.equal(a.tokens, b.tokens) for a, b in zip(first, other))


def test_tools_are_called_and_what_goes_wrong_with_them_is_told():
    used = [call("box_lookup", key="apples"), call("box_steal"), call("box_lookup", key="pears")]
    (rollout,) = played("vf-box", *used, ("<tool_call>{42", "eos"))
    assert rollout.reward == 1.0 and rollout.reward_parts["tools"] == 3 and rollout.reward_parts["turns"] == 4
    tool_messages = [message["content"] for message in rollout.dialogue if message["role"] == "tool"]
    assert tool_messages[0] == "42" and tool_messages[1] == "error: unknown tool 'box_steal'" and "pears" in tool_messages[2]
    assert rollout.turn.unique().tolist() == [-1, 0, 1, 2, 3] and rollout.parent is None  # one row, nothing read twice
    assert rollout.text == "<tool_call>{42" and rollout.reward_parts["tools/malformed"] == 1  # verifiers takes it for an end


def test_several_turns_are_exact_and_one_row():
    hf = tiny()
    for rollout in played("vf-quiz", sampler=HFSampler(hf), n=4, most=8):
        exact(rollout, hf)
        assert rollout.turn.unique().tolist() == [-1, 0, 1] and rollout.parent is None
        turns = [message["content"] for message in rollout.dialogue if message["role"] == "assistant"]
        assert rollout.reward == "".join(turns).count("a") and rollout.reward_parts["said"] == 2
        assert [message["content"] for message in rollout.dialogue if message["role"] == "user"] == ["say a", "say it again"]


def test_episodes_go_on_across_weight_updates():
    task = TaskConfig(source="verifiers:vf-quiz")
    rows = tasks_of(task.source, task).rows
    prompts = [Prompt(str(i), row["prompt"], (5,), {"task": row["task"]}, task.source) for i, row in enumerate(rows)]
    config = RolloutConfig(num_prompts=2, num_generations=3, max_staleness=2)
    for _ in range(6):  # on a busy machine all episodes may end before the first update
        sampler = Pieces()
        with VerifiersEpisodes(sampler, sampler, Encoder(tokenizer("chatml"), task), 512, task) as episodes:
            source = AsynchronousSource(Curriculum([Pool(TASK, prompts, 0)]), episodes, AlreadyScored(), config, SAMPLING)
            rollouts = [rollout for step in steps(source, sampler, 3) for rollout in step]
        assert len(rollouts) == 18 and all(rollout.reward is not None for rollout in rollouts)
        if sum(len(rollout.version[rollout.sampled].unique()) > 1 for rollout in rollouts) > 5:
            break
    assert sum(exact_by_version(rollouts, sampler)) > 5


def test_of_several_agents_the_one_that_is_trained_counts():
    local = {"harness": {"id": "gspo_chat"}, "runtime": {"type": "subprocess"}}
    script = [("please", "eos"), ("aaaa", "eos"), ("###DONE###", "eos")]  # the user's, the policy's, the user's
    (rollout,) = played("vf-letters", *script, config={"id": "user-sim", "user": local})
    assert rollout.reward == 1.0 and rollout.text == "aaaa" and rollout.reward_parts["turns"] == 1
    (rollout,) = played("vf-letters", *[("aa", "eos")] * 2, config={"id": "best-of-n", "n": 2})
    assert rollout.reward is None and "2 of its agents' runs are to be trained, one is expected" in rollout.error


@pytest.mark.parametrize(
    ("source", "task", "why"),
    [
        ("vf-letters", {"config": {"taskset": {"fault": "raises"}}}, "the rubric fell over"),
        ("vf-letters", {"config": {"taskset": {"fault": "sleeps"}}, "step_timeout": 5.0}, "task.step_timeout = 5"),
        ("vf-letters", {"config": {"taskset": {"fault": "pays too much"}}}, "reward is 1e+200, which is beyond 1e+09"),
        ("vf-quiz", {"config": {"fault": "no such room"}}, "no such room"),
        ("vf-letters", {"config": {"agent": {"sampling": {"temperature": 0.5}}}}, "sampled at temperature 0.5"),
        ("vf-letters", {"config": {"agent": {"sampling": {"presence_penalty": 1}}}}, "presence_penalty = 1 cannot"),
    ],
)
def test_an_episode_that_fails_is_data(source, task, why):
    rollouts = played(source, *[("aa", "eos")] * 2, prompts=2, **task)
    failed = [rollout for rollout in rollouts if rollout.reward is None]
    assert why in failed[-1].error and not failed[-1].sampled.any()
    assert len(failed) == (1 if "taskset" in task["config"] else 2)  # every other task has the fault


def test_what_an_episode_changes_in_its_task_no_other_sees():
    options = {"config": {"taskset": {"fault": "grows"}}}
    for _ in range(2):
        rollouts = played("vf-letters", *[("aa", "eos")] * 4, n=2, prompts=2, **options)
        assert [rollout.reward for rollout in rollouts[2:]] == [1, 1]


def test_the_policy_may_think_for_longer_than_an_environment_may_act():
    class Slow(Scripted):
        def begin(self, *args):
            job, late = super().begin(*args), type("Job", (), {"cancel": lambda self: None})()
            late.future = type(job.future)()
            leap(asyncio.get_running_loop())
            threading.Timer(0.3, lambda: late.future.set_result(job.future.result())).start()
            return late

    (rollout,) = played("vf-letters", sampler=Slow("chatml", ("aa", "eos")), step_timeout=PATIENCE)
    assert rollout.reward == 1.0


def test_limits_cut_an_episode_off():
    (rollout,) = played("vf-quiz", ("aaa", "eos"), max_turns=1)
    assert rollout.stop == "length" and rollout.reward == 3 and rollout.reward_parts["turns"] == 1
    (rollout,) = played("vf-quiz", ("aaa", "eos"), context=24)
    assert rollout.stop == "length" and rollout.reward == 3 and rollout.reward_parts["turns/context_full"] == 1
    (rollout,) = played("vf-letters", context=8)
    assert rollout.reward is None and "the context is full" in rollout.error


def test_a_lost_sampler_ends_the_run():
    class Lost(Scripted):
        def begin(self, *args):
            raise SamplerError("the engine died")

    with pytest.raises(SamplerError, match="the engine died"):
        played("vf-letters", sampler=Lost("chatml"), n=2)


def run(folder, resume=False, **changes):
    hf = tiny()
    sections = {
        "task": {"source": "verifiers:vf-letters"},
        "rollout": {"num_prompts": 4, "num_generations": 4, "max_completion_length": 8},
        "algorithm": {"mini_batches": 1}, "train": {"steps": 2}, "optimizer": {"lr": 1e-2},
        "eval": {"every": 2, "num_prompts": 4}, "log": {"dir": str(folder)},
    }  # fmt: skip
    for section, table in changes.items():
        sections[section] = sections[section] | table if section in sections else table
    return gspo.train(hf.model, tokenizer=hf.tokenizer, resume=resume, **sections)


def test_a_whole_run_and_its_evaluation(tmp_path):
    task = {"eval_split": "test", "size": 16}
    result = run(tmp_path / "run", task=task, train={"save_every": 1})
    assert result.finished and result.metrics["rollouts/failed"] == 0 and result.metrics["mismatch/prob_max"] < 1e-4
    rollouts = lines(tmp_path / "run", "rollouts")
    assert len(rollouts) == 32 and all(row["prompt"][-1]["content"].startswith("train: say a") for row in rollouts)
    parts = [row["reward_parts"] for row in rollouts]
    assert [row["reward"] for row in rollouts] == pytest.approx([part["share"] + part["upper"] / 2 for part in parts])
    asked = {"task": {"source": "verifiers:vf-letters", "eval_split": "test"}, "eval": {"num_prompts": 3}}
    asked["eval"]["max_completion_length"] = 8
    metrics, groups = gspo.evaluate(config=asked | {"model": {"path": str(tmp_path / "run" / "model")}})
    assert metrics["eval/prompts"] == 3 and 0 <= metrics["eval/reward"] <= 1.5
    assert [group.prompt.messages[-1]["content"] for group in groups] == [f"test: say a, {i}" for i in range(3)]
    again = run(tmp_path / "run", resume=True, task=task, train={"save_every": 1, "steps": 3})
    assert again.finished and again.metrics["step"] == 3 and again.metrics["rollouts/failed"] == 0


def test_an_endless_taskset_gives_as_many_tasks_as_are_asked_for(tmp_path):
    endless = {"source": "verifiers:vf-letters", "config": {"taskset": {"endless": True}}}
    with pytest.raises(ValueError, match=r"endless: set task.size"):
        run(tmp_path / "run", task=endless)
    assert run(tmp_path / "run", task=endless | {"size": 12}, eval={"every": 0}, train={"steps": 1}).finished


@pytest.mark.parametrize(
    ("task", "why"),
    [
        ({"source": "verifiers:nowhere"}, "verifiers:nowhere: ModuleNotFoundError: taskset 'nowhere' not found"),
        ({"source": "verifiers:vf-old"}, "has a load_environment, as environments for verifiers before 0.4 do"),
        ({"config": {"taskset": {"tasks": 0}}}, "there are no rows"),
        ({"config": {"taskset": {"taks": 5}}}, "taks"),
        ({"config": {"taskset": {"id": "vf-box"}}}, "the source names it"),
        ({"config": {"taskset": 3}}, "expected a table"),
        ({"config": {"agent": {"harness": {"id": "nothing"}}}}, "nothing"),
        ({"environment": "a:B"}, "is an environment itself"),
        ({"system": "be good"}, "has its own messages"),
        ({"source": "rows.jsonl", "eval_source": "verifiers:vf-letters"}, "both must be verifiers:NAME"),
    ],
)
def test_bad_settings(tmp_path, task, why):
    with pytest.raises(ValueError, match=why):
        run(tmp_path / "run", task={"source": "verifiers:vf-letters"} | task)
    assert not (tmp_path / "run").exists()


def test_what_has_no_effect_is_refused(tmp_path):
    with pytest.raises(ValueError, match="gives the reward itself"):
        run(tmp_path / "run", config={"reward": {"functions": ["exact"]}})
    with pytest.raises(ValueError, match="reward: has no effect"):
        run(tmp_path / "run", reward=lambda prompts, completions: [1.0] * len(prompts))
    with pytest.raises(ValueError, match="leave dataset and eval_dataset out"):
        gspo.train(
            tiny().model, [{"prompt": "a"}], tokenizer=tiny().tokenizer, task={"source": "verifiers:vf-letters"},
            log={"dir": str(tmp_path / "run")},
        )  # fmt: skip
