"""Agents and scripts of ART's (openpipe-art), with ART's own classes: `make test-art` has an environment with it."""

import asyncio
import inspect
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import gspo
from gspo.agents.art_compat import ELSEWHERE, OURS, settings
from gspo.runs import checkpoint
from tests.agents.talking import TOOLS
from tests.launch.started import ROOT, wait_for
from tests.patience import PATIENCE
from tests.serving.served import ASK, serving, tiny
from tests.serving.test_model import worth

art = pytest.importorskip("art")
from art.backend import Backend  # noqa: E402
from art.local import LocalBackend  # noqa: E402
from art.pipeline_trainer import PipelineTrainer  # noqa: E402

from tests.serving.art_script import WORDS, rollout  # noqa: E402


async def agent(client, turns):
    """As ART's users write it: choices as the client returned them, and a sub-agent's conversation beside the main one."""
    trajectory = art.Trajectory(messages_and_choices=[*ASK], reward=0.0, metadata={"turns": turns})
    for turn in range(turns):
        response = await client.chat.completions.create(model="policy", messages=trajectory.messages(), tools=TOOLS)
        trajectory.messages_and_choices.append(response.choices[0])
        trajectory.reward += worth(response.choices[0].message.content or "") / (turns + 1)
        if turn < turns - 1:
            trajectory.messages_and_choices.append({"role": "user", "content": "go on"})
    beside = [{"role": "user", "content": "and the other box"}]
    response = await client.chat.completions.create(model="policy", messages=beside)
    trajectory.reward += worth(response.choices[0].message.content or "") / (turns + 1)
    trajectory.additional_histories.append(art.trajectories.History(messages_and_choices=[*beside, response.choices[0]]))
    trajectory.metrics["letters"] = trajectory.reward
    trajectory.log("done")
    return trajectory.finish()


async def fails():
    raise ValueError("the agent fell over")


def test_arts_agent_learns(tmp_path):
    async def main():
        async with serving(tmp_path / "run") as model:
            client, rewards = model.openai_client(), []
            for _ in range(20):
                groups = await art.gather_trajectory_groups(
                    (art.TrajectoryGroup([*(agent(client, 2) for _ in range(8)), fails()]) for _ in range(2)),
                    pbar_desc="gather", max_exceptions=2,
                )  # fmt: skip
                config = art.TrainConfig(learning_rate=1e-2)
                metrics = await model.train(groups, config=config, _config={"importance_sampling_level": "sequence"})
                rewards.append(metrics["reward"])
                assert metrics["turns/trained"] == 48 and metrics["turns/left_out"] == 0
                assert metrics["trajectories/left_out"] == 2  # those that fell over
                assert metrics["mismatch/prob_max"] < 1e-4 and metrics["lr"] == pytest.approx(1e-2)
                assert metrics["reward/letters"] == pytest.approx(metrics["reward"]) and "reward/duration" in metrics
            noted = await model.log(groups, split="val", metrics={"mine": 3.0})
            assert noted["val/reward"] == pytest.approx(rewards[-1]) and noted["val/mine"] == 3.0
            assert (await model.log(list(groups[0])))["val/letters"] > 0
            with pytest.raises(ValueError, match=r"kl_penalty_coef = 0.1: .*algorithm\.beta"):
                await model.train(groups, config=art.TrainConfig(kl_penalty_coef=0.1))
            return rewards

    rewards = asyncio.run(main())
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.07


def test_the_tables_are_those_of_the_version_that_is_installed():
    taken = {
        p.name: p.default for p in inspect.signature(LocalBackend.train).parameters.values() if p.kind is p.KEYWORD_ONLY
    }
    rate = taken["learning_rate"]
    assert settings(None, taken | {"importance_sampling_level": "sequence"}) == gspo.TrainCall(rate, "sequence")
    assert settings(art.TrainConfig(), {}) == gspo.TrainCall(rate)
    assert {*taken, *art.dev.TrainConfig.__annotations__} <= {*ELSEWHERE, *OURS}
    members = {name for name, member in vars(Backend).items() if inspect.isfunction(member)}
    assert {"train", "_train_sft"} < members <= {*dir(gspo.ArtBackend)}


@pytest.fixture(scope="module")
def base_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("base") / "model"
    tiny().save(folder)
    return str(folder)


def begun(folder, base_model, steps):
    """The script, in a process of its own."""
    path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT / "src"), str(ROOT)])
    return subprocess.Popen(
        [sys.executable, "-m", "tests.serving.art_script", base_model, str(steps)], cwd=folder, text=True,
        env=os.environ | {"PYTHONPATH": path}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def history(folder):
    """What ART has logged."""
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


def kill(process, folder):
    """Kills the script, but not while ART writes its own files: it cannot read half of one."""
    while True:
        process.send_signal(signal.SIGSTOP)
        try:
            assert history(folder) and json.loads((folder / "state.json").read_text())
        except ValueError:
            process.send_signal(signal.SIGCONT)
            time.sleep(0.01)
        else:
            process.kill()
            process.communicate(timeout=PATIENCE)
            return


def test_a_script_that_is_killed_goes_on_and_gets_better(tmp_path, base_model):
    folder = tmp_path / ".art/words/models/letters"
    first = begun(tmp_path, base_model, 24)
    wait_for((folder / "gspo/checkpoints/step_000006").exists, process=first)
    kill(first, folder)
    killed = int(checkpoint.latest(folder / "gspo/checkpoints").name.removeprefix("step_"))
    second = begun(tmp_path, base_model, 24)
    output = second.communicate(timeout=PATIENCE)[0]
    assert second.returncode == 0, output
    lines = history(folder)
    steps = [line["step"] for line in lines]
    assert steps[-(24 - killed) :] == [*range(killed + 1, 25)] and 6 <= killed < 24
    assert steps[: killed - 1] == [*range(1, killed)]  # it may have been killed before it logged the last
    rewards = [line["train/reward"] for line in lines]
    assert sum(rewards[-3:]) / 3 > sum(rewards[:3]) / 3 + 0.07
    known = {"loss/train", "loss/entropy", "loss/grad_norm", "loss/learning_rate", "time/step_trainer_s", "time/step_wall_s"}
    assert known <= {*lines[-1]} and lines[-1]["train/gspo/mismatch/prob_max"] < 1e-4
    assert (folder / "checkpoints/0024/model.safetensors").exists() and (folder / "gspo/report.html").exists()


def trainable(tmp_path, base_model, **options):
    fixed = {"name": "letters", "project": "words", "base_path": str(tmp_path / "art"), "report_metrics": []}
    return art.TrainableModel(base_model=base_model, **fixed, **options)


async def gathered(model, groups=2):
    return await art.gather_trajectory_groups(
        art.TrajectoryGroup(rollout(model, word) for _ in range(4)) for word in WORDS[:groups]
    )


def test_each_member_of_the_backend(tmp_path, base_model):
    """Adapters, as ART trains them by default."""

    async def main():
        model = trainable(tmp_path, base_model, _internal_config={"peft_args": {"r": 2}})
        other = art.Model(name="gpt", project="words", inference_model_name="gpt-4", base_path=str(tmp_path / "art"))
        async with gspo.ArtBackend() as backend:
            with pytest.raises(ValueError, match="'letters' is not registered here"):
                await backend.train(model, [])
            await other.register(backend)
            assert other.get_inference_name() == "gpt-4" and await other.get_step() == 0
            await model.register(backend)
            await model.register(backend)  # again, as in a notebook
            assert model.get_inference_name() == "letters" and model.get_inference_name(3) == "letters@3"
            turn = {"role": "assistant", "content": "a pear"}
            talks = [art.Trajectory(messages_and_choices=[*ASK, turn], reward=0.0) for _ in range(4)]
            await model.train_sft(talks, art.TrainSFTConfig(learning_rate=[1e-3, 2e-3]))
            for number in (2, 3, 4):
                groups = await gathered(model)
                result = await backend.train(model, groups, learning_rate=1e-2, importance_sampling_level="sequence")
                await model.log(groups, metrics=result.metrics, step=result.step, split="train")
                assert result.step == await model.get_step() == number
                assert Path(result.checkpoint_path, "adapter_model.safetensors").exists()
            unsaved = await backend.train(model, await gathered(model), save_checkpoint=False, loss_fn="cispo")
            assert unsaved.step == 5 and unsaved.checkpoint_path is None
            await backend._delete_checkpoint_files(model, [2, 4])  # delete_checkpoints() fails in polars 2
            for bad, why in (({"kimi_k2_tau": 1.0}, "kimi_k2_tau = 1.0"), ({"importance_sampling_level": "token"}, "grpo")):
                with pytest.raises(ValueError, match=why):
                    await backend.train(model, await gathered(model), **bad)
        return model

    model = asyncio.run(main())
    folder = tmp_path / "art/words/models/letters"
    first, *_ = history(folder)
    assert first["step"] == 1 and first["loss/learning_rate"] == pytest.approx(1.5e-3)
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["0002", "0004"]
    saved = [int(path.name.removeprefix("step_")) for path in checkpoint.steps(folder / "gspo/checkpoints")]
    assert saved == [2, 4, 5]
    assert json.loads((folder / "model.json").read_text())["base_model"] == base_model
    assert model.inference_base_url.startswith("http://127.0.0.1")


def test_what_is_refused(tmp_path, base_model):
    async def refused(backend, config=None, **options):
        await trainable(tmp_path, base_model, **options).register(backend, _openai_client_config=config)

    for options, why in (
        ({"config": {"server_args": {"port": 1}}}, r"_openai_client_config = .*serve=\{"),
        ({"_internal_config": {"engine_args": {"seed": 1}}}, "_internal_config: engine_args"),
    ):
        with pytest.raises(ValueError, match=why):
            asyncio.run(refused(gspo.ArtBackend(), **options))
    (folder := tmp_path / "art/words/models/letters/checkpoints/0001").mkdir(parents=True)
    with pytest.raises(ValueError, match=f"{folder} is of another backend: give the model another name"):
        asyncio.run(refused(gspo.ArtBackend()))
    assert not (tmp_path / "art/words/models/letters/gspo").exists()


@pytest.mark.skipif(not hasattr(art.TrainableModel, "train"), reason="ART has no such call any more")
def test_the_older_call_of_arts_model(tmp_path, base_model):
    async def main():
        with gspo.ArtBackend(path=tmp_path / "art") as backend:
            model = trainable(tmp_path, base_model)
            await model.register(backend)
            dev = art.dev.TrainConfig(importance_sampling_level="sequence")
            await model.train(await gathered(model), art.TrainConfig(learning_rate=1e-3), dev)

    asyncio.run(main())
    (line,) = history(tmp_path / "art/words/models/letters")
    assert line["step"] == 1 and line["loss/learning_rate"] == pytest.approx(1e-3)


def test_the_pipeline_trainer(tmp_path, base_model):
    """It trains while evaluations go on, each with the weights of its step, though it does not ask for them by name."""
    named, versions = [], {}
    leases = hasattr(PipelineTrainer, "_adapter_lease")  # from 0.5.18 on

    async def rollouts(model, scenario, config):
        return art.TrajectoryGroup(await asyncio.gather(*(rollout(model, scenario["word"]) for _ in range(4))))

    async def evaluated(model, step, config):
        name = model.get_inference_name() if leases else model.get_inference_name(step)
        named.append((step, name))
        await asyncio.sleep(0.3)  # the training goes on
        completion = await model.openai_client().chat.completions.create(model=name, messages=ASK)
        versions[step] = completion.system_fingerprint
        return [await rollout(model, WORDS[0])]

    async def main():
        backend = gspo.ArtBackend(lora={"rank": 0}, algorithm={"mini_batches": 1})
        model = trainable(tmp_path, base_model)
        await model.register(backend)
        pipeline = PipelineTrainer(
            model, backend, rollouts, ({"word": word} for word in itertools.cycle(WORDS)), None, evaluated,
            num_rollout_workers=4, min_batch_size=2, max_batch_size=4, learning_rate=1e-2, max_steps=6, eval_every_n_steps=2,
        )  # fmt: skip
        await pipeline.train(handle_signals=False)
        await backend.close()
        return await asyncio.to_thread(history, tmp_path / "art/words/models/letters")

    lines = asyncio.run(main())
    assert {line["step"] for line in lines if "train/reward" in line} == {*range(1, 7)}
    assert {*named} == {(step, f"letters@{step}") for step in (0, 2, 4, 6)}
    assert versions == {step: f"version-{step}" for step in (0, 2, 4, 6)}
    assert {line["step"] for line in lines if "val/reward" in line} == {0, 2, 4, 6}
