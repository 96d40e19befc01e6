import asyncio
import itertools
import json
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import httpx
import pytest
from safetensors.torch import load_file

from gspo.learner.memory import OutOfMemory
from gspo.runs import checkpoint, disk
from gspo.runs.folder import RunFolder
from tests.launch.started import ROOT
from tests.patience import PATIENCE
from tests.serving.served import GOOD, post, serving, tiny
from tests.serving.test_model import body, collected


def test_it_listens_within_the_context_alone_and_the_model_is_written(tmp_path):
    made = tiny()
    with serving(tmp_path / "run", hf=made) as model:
        address = model.base_url.removesuffix("/v1") + "/health"
        assert httpx.get(address, timeout=PATIENCE).status_code == 200 and model.step == 0
        with pytest.raises(RuntimeError, match="another process is writing"):
            RunFolder.resume(tmp_path / "run")
    with pytest.raises(httpx.ConnectError):
        httpx.get(address, timeout=PATIENCE)
    RunFolder.resume(tmp_path / "run").close()  # it has let go of it
    saved = type(made.model).from_pretrained(tmp_path / "run" / "model")
    assert all((a == b).all() for a, b in zip(saved.parameters(), made.model.parameters()))
    assert not list((tmp_path / "run" / "checkpoints").iterdir()) and not (tmp_path / "run" / "report.html").exists()


UPDATES = 4  # of a step


def held(model, then=lambda: None):
    """The third update of a step waits until the run says that it waits for the step, or until the second of these events is
    set; then it does `then`. The first is set once it waits.
    """

    def note(text):
        if text.startswith("finishing"):
            may.set()

    learner, reached, may, count = model.run.learner, threading.Event(), threading.Event(), itertools.count(1)
    update = learner.update

    def waits(number):
        if next(count) == 3:
            reached.set()
            may.wait(PATIENCE)
            then()
        return update(number)

    learner.update, model.run.screen.note = waits, note
    return reached, may


def cancelled_in_its_step(folder, then=lambda: None, while_it_ends=True):
    """A run that ended in a step whose call was cancelled, as Ctrl-C and asyncio.wait_for do; and what it trained on.
    while_it_ends: The step fails only once the run waits for it.
    """

    async def play():
        async with serving(folder, algorithm={"mini_batches": UPDATES}) as model:
            groups = await collected(model, 4, 2)
            reached, may = held(model, then)
            task = asyncio.ensure_future(model.train(groups))
            await asyncio.to_thread(reached.wait, PATIENCE)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            if not while_it_ends:
                may.set()
                while model.lost is None:
                    await asyncio.sleep(0.01)
        may.set()
        return model, groups

    return asyncio.run(play())


def whole_step(folder):
    """Asserts that the one checkpoint holds a whole step, and that it was logged and is the final model."""
    (saved,) = checkpoint.steps(folder / "checkpoints")
    assert checkpoint.read_state(saved, checkpoint.LEARNER)["optimizer"]["updates"] == UPDATES
    assert checkpoint.read_state(saved)["version"] == 1 and not disk.damage(saved)
    assert [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()] == [1]
    kept, final = (load_file(path / "model" / "model.safetensors") for path in (saved, folder))
    assert all((kept[name] == x).all() for name, x in final.items())


def test_a_step_under_way_is_finished_before_anything_is_saved(tmp_path):
    model, groups = cancelled_in_its_step(tmp_path / "run")
    with pytest.raises(RuntimeError, match=r"the run has ended.*resume"):
        asyncio.run(model.train(groups))
    with pytest.raises(RuntimeError, match="the run has ended"):
        model.save()
    whole_step(tmp_path / "run")


def test_who_waits_for_the_step_is_answered_and_who_waits_behind_it_refused(tmp_path):
    with serving(tmp_path / "run", algorithm={"mini_batches": UPDATES}) as model, ThreadPoolExecutor() as others:
        groups = [asyncio.run(collected(model, 4, 2)) for _ in range(2)]
        reached, _ = held(model)
        first = others.submit(post, model, "/train", body(groups[0]))
        assert reached.wait(PATIENCE)
        second = others.submit(post, model, "/train", body(groups[1]))
        leaving = others.submit(model.end)
        responses = first.result(PATIENCE), second.result(PATIENCE)
        leaving.result(PATIENCE)
    assert [response.status_code for response in responses] == [200, 503]
    assert responses[0].json()["step"] == 1 and "the run has ended" in responses[1].json()["error"]["message"]
    whole_step(tmp_path / "run")


@pytest.mark.parametrize("while_it_ends", [True, False])
def test_ranks_that_are_lost_after_the_call_was_cancelled_end_it_with_their_error(tmp_path, while_it_ends):
    def lost():
        raise OutOfMemory("rank 1 was out of memory", 40)

    with pytest.raises(OutOfMemory, match="rank 1 was out of memory"):
        cancelled_in_its_step(tmp_path / "run", lost, while_it_ends)
    assert not (tmp_path / "run" / "model").exists() and not checkpoint.steps(tmp_path / "run" / "checkpoints")


STUCK = """
import asyncio, os, signal, sys, threading
from tests.serving.served import serving
from tests.serving.test_model import collected

def interrupt(*_):
    os.kill(os.getpid(), signal.SIGINT)

async def play():
    async with serving(sys.argv[1]) as model:
        groups = await collected(model)
        def never(number):
            interrupt()
            threading.Event().wait()
        model.run.learner.update = never
        model.run.screen.note = lambda text: threading.Thread(target=interrupt).start()
        await model.train(groups)

asyncio.run(play())
"""


def test_a_second_ctrl_c_ends_it_though_the_step_does_not(tmp_path):
    command = [sys.executable, "-c", STUCK, str(tmp_path / "run")]
    ended = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, timeout=PATIENCE)
    assert ended.returncode != 0 and "KeyboardInterrupt" in ended.stderr
    assert not (tmp_path / "run" / "model").exists() and not checkpoint.steps(tmp_path / "run" / "checkpoints")
    RunFolder.resume(tmp_path / "run").close()


def test_a_run_that_an_error_or_ctrl_c_ended_has_a_report(tmp_path):
    async def play():
        async with serving(tmp_path / "error") as model:
            await model.log(metrics={"val/reward": 1.0}, step=1)
            raise LookupError("user code broke")

    with pytest.raises(LookupError):
        asyncio.run(play())
    assert "user code broke" in (tmp_path / "error" / "report.html").read_text()
    with pytest.raises(KeyboardInterrupt), serving(tmp_path / "stopped") as model:
        asyncio.run(model.log(metrics={"val/reward": 1.0}, step=1))
        signal.raise_signal(signal.SIGINT)
    assert (tmp_path / "stopped" / "report.html").exists()


def test_an_address_that_others_can_reach_is_warned_of(tmp_path):
    warned = []
    for host in ("0.0.0.0", "127.0.0.1"):
        with serving(tmp_path / host, serve={"host": host}) as model:
            assert urlsplit(model.base_url).hostname == "127.0.0.1"
            answer = httpx.get(f"{model.base_url}/models", timeout=PATIENCE)
            assert answer.status_code == 401  # the key is needed wherever it listens
            assert post(model, "/chat/completions", GOOD).status_code == 200
        warned.append("other machines can reach the endpoint" in (tmp_path / host / "events.jsonl").read_text())
    assert warned == [True, False]
