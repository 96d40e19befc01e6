"""Whole runs: an agent with OpenAI's client asks, is rewarded, and the model learns from the tokens that were sampled."""

import asyncio
import copy
import json
import string
import threading
from types import SimpleNamespace

import pytest
import torch

import gspo
from gspo import Trajectory, TrajectoryGroup
from gspo.agents.trajectories import plain
from gspo.interfaces import SamplerError, TeacherFailed
from gspo.runs import checkpoint
from tests.agents.talking import TOOLS
from tests.rewards.teachers import NAME, Teacher, refused, served
from tests.rollout.test_asynchronous_episodes import gaps
from tests.serving.served import ASK, post, serving, tiny


def worth(text):
    """Share of lower-case letters."""
    return sum(c in string.ascii_lowercase for c in text) / max(1, len(text))


async def agent(client, seed, turns=1):
    items = [*ASK]
    reward = 0.0
    for turn in range(turns):
        response = await client.chat.completions.create(
            model="policy", messages=[plain(item) for item in items], tools=TOOLS, seed=seed + turn
        )
        items.append(response.choices[0])
        reward += worth(response.choices[0].message.content or "") / turns
        items.append({"role": "user", "content": "go on"})
    return Trajectory(items[:-1], reward=reward, metrics={"turns": turns})


async def collected(model, groups=2, size=4, turns=1):
    """Groups of trajectories. Their seeds follow from the step and their number, not from whose request comes first."""
    begin = model.step * 10_000
    async with model.openai_client() as client:
        groups_of_trajectories = [
            await asyncio.gather(*(agent(client, begin + 10 * (group * size + i), turns) for i in range(size)))
            for group in range(groups)
        ]
    return [TrajectoryGroup(trajectories) for trajectories in groups_of_trajectories]


def test_an_agent_of_two_turns_learns(tmp_path):
    async def main():
        async with serving(tmp_path / "run") as model:
            rewards = []
            for _ in range(20):
                call = gspo.TrainCall(importance_sampling_level="sequence")
                metrics = await model.train(await collected(model, 2, 12, 2), call)
                rewards.append(metrics["reward"])
                assert metrics["mismatch/prob_max"] < 1e-4 and metrics["ratio/noise_floor"] < 1e-5  # the very tokens
                assert metrics["turns/trained"] == 48 and metrics["turns/left_out"] == 0
                assert metrics["staleness"] == 0
            groups = await collected(model, 1)
            assert (await model.log(groups))["val/reward"] > 0
            assert (await model.log(groups[0], "test", metrics={"mine": 3}))["test/mine"] == 3
            assert await model.log([list(group) for group in groups]) == await model.log(groups)
            assert await model.log(metrics={"mine": 4.0}, step=7) == {"val/mine": 4.0}
            with pytest.raises(ValueError, match="no trajectory"):
                await model.log([])
            return rewards

    rewards = asyncio.run(main())
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.07
    lines = [json.loads(line) for line in (tmp_path / "run" / "rollouts.jsonl").read_text().splitlines()]
    assert {row["turn"] for row in lines[-1]["dialogue"] if "turn" in row} == {0, 1}
    assert (tmp_path / "run" / "report.html").exists() and (tmp_path / "run" / "model" / "model.safetensors").exists()
    assert "val/reward" in (tmp_path / "run" / "metrics.jsonl").read_text()


def test_conversations_go_on_while_the_model_learns(tmp_path):
    """Each token has the version and the likelihood of the weights that sampled it; `max_age` counts from the oldest."""

    async def say(client, talks, seed):
        async def one(items, seed):
            messages = [plain(item) for item in items]
            response = await client.chat.completions.create(model="policy", messages=messages, seed=seed)
            items += [response.choices[0], {"role": "user", "content": "go on"}]

        await asyncio.gather(*(one(items, seed + i) for i, items in enumerate(talks)))

    async def main():
        async with serving(tmp_path / "run", serve={"max_age": 1}) as model:
            module = model.run.learner.policy.model.model
            models = {0: copy.deepcopy(module.state_dict())}
            talks, late = ([[*ASK] for _ in range(4)] for _ in range(2))
            (first,) = await collected(model, 1)
            async with model.openai_client() as client:
                await say(client, talks, 100)
                await say(client, late, 200)
                await asyncio.gather(model.train([first]), say(client, talks, 300))  # some before it, some behind it
                models[1] = copy.deepcopy(module.state_dict())
                for seed in (400, 500):
                    await say(client, talks, seed)
                    await say(client, late, seed + 50)
            metrics = await model.train([[Trajectory(items[:-1], reward=i) for i, items in enumerate(talks)]])
            rollouts = [rollout for group in model.source.groups for rollout in group.rollouts]
            after = await model.train([[Trajectory(items[:-1], reward=i) for i, items in enumerate(late)]])
            return models, metrics, rollouts, after, [r for group in model.source.groups for r in group.rollouts]

    models, metrics, rollouts, after, young = asyncio.run(main())
    assert metrics["turns/trained"] == 16 and metrics["turns/left_out"] == 0 and metrics["rollouts/multi_version"] == 1
    weights, ages = SimpleNamespace(hf=tiny(), models=models), []
    for rollout in rollouts:
        versions, turns = rollout.version[rollout.sampled], rollout.turn[rollout.sampled]
        assert set(versions[turns == 0].tolist()) == {0} and set(versions[turns >= 2].tolist()) == {1}
        for version in (0, 1):
            gap = gaps(rollout, weights, version)
            assert float(gap[versions == version].max()) < 1e-4 and float(gap[versions != version].max()) > 1e-3
        ages += (1 - versions).tolist()
    assert metrics["staleness"] == pytest.approx(sum(ages) / len(ages)) and 0 < metrics["staleness"] < 1
    # Two versions later the first turns are too old, and what they led to is not.
    assert after["turns/trained"] == 8 and after["turns/left_out"] == 4 and after["staleness"] == 1
    assert all(set(r.version[r.sampled].tolist()) == {1} for r in young)


def test_what_cannot_be_trained_on_is_named_and_the_rest_trained(tmp_path):
    async def main():
        async with serving(tmp_path / "run") as model:
            good, bad = await collected(model, 2)
            bad.trajectories[0].reward = float("nan")
            (alone,) = await collected(model, 1, 1)
            mixed = [good, bad, alone, TrajectoryGroup([]), TrajectoryGroup([Trajectory(ASK, 1.0)]), good]
            metrics = await model.train(mixed)
            assert metrics["turns/trained"] == 7 and metrics["groups/dropped"] == 0
            assert metrics["trajectories/left_out"] == 1 + 1 + 1 + 4  # nan, alone, without a turn, handed over twice
            for groups, level, why in (
                ([], None, "no trajectory was given"),
                ([[1, 2]], None, r"groups\[0\]\[0\] = 1, an int: a trajectory is expected"),
                (await collected(model), "token", r'is of level .*"grpo" \(token\)'),
            ):
                with pytest.raises(ValueError, match=why):
                    await model.train(groups, importance_sampling_level=level)

    asyncio.run(main())
    events = (tmp_path / "run" / "events.jsonl").read_text()
    assert "step 1 leaves out" in events and "no finite number" in events


def body(groups):
    """Of a request to train on them."""

    def message(item):
        return item if isinstance(item, dict) else {"id": item.id, "message": plain(item)}

    return {"groups": [{"trajectories": [{"messages_and_choices": [message(item) for item in t.messages_and_choices],
            "reward": t.reward, "turn_rewards": [0.5]} for t in group]} for group in groups]}  # fmt: skip


def test_training_over_http(tmp_path):
    hf = tiny()

    async def gathered(model):
        return await collected(model, 1)

    with serving(tmp_path / "run", hf=hf) as model:
        response = post(model, "/train", body(asyncio.run(gathered(model))) | {"learning_rate": 1e-3})
        assert response.status_code == 200 and response.json()["step"] == 1
        assert response.json()["metrics"]["lr"] == pytest.approx(1e-3)
        again = post(model, "/train", {"groups": [{"trajectories": []}]})
        assert again.status_code == 400 and "nothing to train on" in again.json()["error"]["message"]
    with pytest.raises(ValueError, match=r"log\.dir"), serving(tmp_path / "run", hf=hf):
        pass  # a run folder is never overwritten


def test_a_served_run_is_not_measured_by_a_number_of_steps(tmp_path, capsys):
    with serving(tmp_path / "run", train={"steps": 1}, optimizer={"schedule": "linear"}) as model:
        asyncio.run(model.log([Trajectory([*ASK], reward=0.25, metrics={"reward": 9.0})], metrics={"seconds": 3}))
        for step in (1, 2):
            assert asyncio.run(model.train(asyncio.run(collected(model))))["step"] == step
    printed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step ")]
    assert [line.split("  ")[0] for line in printed] == ["step 0", "step 1", "step 2"] and "left" not in "".join(printed)
    assert printed[0] == "step 0  val/reward 0.25  val/seconds 3"
    assert "Not finished" not in (tmp_path / "run" / "report.html").read_text()
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert line["turns/trained"] == 8 and line["turns/left_out"] == line["trajectories/left_out"] == 0


def saved_scale(model):
    """Factor of the learning rate in the newest checkpoint."""
    return torch.load(checkpoint.latest(model.folder / "checkpoints") / "learner.pt", weights_only=True)["lr_scale"]


def disk_full(model, monkeypatch):
    monkeypatch.setitem(model.run.log._files, "rollouts.jsonl", open("/dev/full", "wb"))  # noqa: SIM115


def sampler_lost(model, monkeypatch):
    def load(weights):
        raise SamplerError("the engine is gone")

    monkeypatch.setattr(model.run.sampler, "load", load)


def test_a_call_whose_teacher_fails_can_be_repeated(tmp_path):
    """The teacher is behind an endpoint."""
    kept = []

    async def main(url):
        settings = {"algorithm": {"name": "grpo"}, "teacher": {"path": NAME, "url": url, "retries": 0}}
        async with serving(tmp_path / "run", **settings) as model:
            assert model.chat.context == 511  # vLLM adds a token to what it reads
            groups = await collected(model, 2, 2, 2)
            all_sent = threading.Barrier(4)  # so that no request of the failed call comes later
            teacher.change = lambda answer, body: all_sent.wait(60) is not None and refused("the engine is dead", 500)
            with pytest.raises(TeacherFailed, match=r"HTTP 500: .*the engine is dead"):
                await model.train(groups)
            teacher.change = lambda answer, body: kept.append(model.still.locked()) or answer
            assert model.step == model.run.learner.optimizer.updates == 0
            metrics = await model.train(groups)
            assert model.step == 1 and metrics["turns/trained"] == 8 and abs(metrics["teacher/kl"]) > 1e-3
            assert len(kept) == 4 and not any(kept)  # agents need not wait while it reads

    with served(teacher := Teacher(tiny(layers=1), 512)) as (_, server):
        asyncio.run(main(server.url))


@pytest.mark.parametrize(("fault", "error"), [(disk_full, "No space left"), (sampler_lost, "the engine is gone")])
def test_what_fails_after_the_updates_leaves_nothing_to_train_on_again(tmp_path, monkeypatch, fault, error):
    """Nor the learning rate of that call."""

    async def main():
        async with serving(tmp_path / "run", train={"save_every": 1}) as model:
            groups = await collected(model)
            with monkeypatch.context() as patch:
                fault(model, patch)
                with pytest.raises((RuntimeError, OSError), match=error):
                    await model.train(groups, learning_rate=5e-3)
            assert model.run.learner.optimizer.updates == 1
            if fault is sampler_lost:  # the loss saved a checkpoint
                assert saved_scale(model) == 1
            with pytest.raises(ValueError, match="trained on, before"):
                await model.train(groups)
            assert model.step == model.run.learner.optimizer.updates == 1
            assert (await model.train(await collected(model)))["lr"] == model.run.config.optimizer.lr
            await model.train(await collected(model), gspo.TrainCall(learning_rate=5e-3))
            assert saved_scale(model) == 1

    asyncio.run(main())


def test_resume(tmp_path):
    hf = tiny()
    with serving(tmp_path / "run", hf=hf, algorithm={"mini_batches": 3}) as model:
        asyncio.run(model.train(asyncio.run(collected(model))))  # of fewer groups than updates
    with gspo.serve(hf.model, resume=True, tokenizer=hf.tokenizer, config=tmp_path / "run" / "config.toml") as model:
        assert model.step == 1 and model.run.sampler.version == 1
        asyncio.run(model.train(asyncio.run(collected(model))))
        assert model.step == 2


def test_turns_are_credited_for_what_follows_them(tmp_path):
    async def main():
        sections = {"algorithm": {"name": "gspo_turn", "credit": "turn", "mini_batches": 1}}
        async with serving(tmp_path / "run", **sections) as model:
            groups = await collected(model, 1, 4, 2)
            for i, trajectory in enumerate(groups[0]):
                trajectory.turn_rewards, trajectory.reward = [float(i), 0.5], 1.0
            metrics = await model.train(groups, gspo.TrainCall(importance_sampling_level="turn"))
            assert metrics["reward"] == pytest.approx(1.5 + 1.5)

    asyncio.run(main())
    lines = [json.loads(line) for line in (tmp_path / "run" / "rollouts.jsonl").read_text().splitlines()]
    # R = i + 1.5: mean 3, std 1.29; the second turn's return is 1.5 in all of them
    assert [row["advantage"] for row in lines] == [
        pytest.approx([(i - 1.5) / 1.2910, -1.5 / 1.2910], abs=1e-3) for i in range(4)
    ]


def test_bad_settings(tmp_path):
    for sections, why in (
        ({"eval": {"every": 1}}, r"eval.every = 1: .*model\.log"),
        ({"serve": {"host": "203.0.113.1"}}, "nothing can listen there"),
        ({"task": {"template_args": {"more": 1}}}, r"task\.template_args\.more"),
    ):
        with pytest.raises(ValueError, match=why), serving(tmp_path / "run", **sections):
            pass
    with pytest.raises(ValueError, match=r"model\.path is required"):
        gspo.serve()
    assert not (tmp_path / "run").exists()
