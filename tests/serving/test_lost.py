"""`gspo serve` on several ranks, of which one is lost while they train."""

import asyncio
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import openai
import pytest

from gspo.backends.vllm.process import free_port
from gspo.learner.memory import OutOfMemory
from gspo.runs import checkpoint, disk
from gspo.serving.endpoint import RETRY_AFTER
from tests.launch.started import begin, finished, wait_for
from tests.patience import PATIENCE
from tests.serving.served import post, serving, tiny
from tests.serving.test_model import body, collected

SETTINGS = """
[model]
path = "model"
[rollout]
max_completion_length = 12
[algorithm]
mini_batches = 1
[train]
save_every = 1
"""
KILLED = "kill", 1, "gspo.learner.update:Updater._pass", 2  # in the second update


@pytest.fixture
def place(tmp_path):
    tiny(tie_word_embeddings=False).save(tmp_path / "model")
    (tmp_path / "run.toml").write_text(SETTINGS)
    return tmp_path


def at(process):
    """Where the endpoint is that has just begun, by what is printed for a shell; and all output until then."""
    found, output = {}, ""
    while len(found) < 2:
        line = process.stdout.readline()
        assert line, output
        output += line
        if line.startswith("export "):
            name, _, value = line.removeprefix("export ").strip().partition("=")
            found[name] = value
    return found["OPENAI_BASE_URL"], found["OPENAI_API_KEY"], output


def trained(url, key, step):
    """The response to a request to train on what is sampled now."""
    client = lambda: openai.AsyncOpenAI(base_url=url, api_key=key)  # noqa: E731
    groups = asyncio.run(collected(SimpleNamespace(step=step, openai_client=client), 1))
    return post(SimpleNamespace(base_url=url, api_key=key), "/train", body(groups))


def test_a_client_is_told_to_come_again_and_finds_the_next_life_where_the_first_was(place):
    port = f"--serve.port={free_port()}"
    process = begin(place, "served", "--scale.ranks=2", port, command="serve", faults=[KILLED])
    try:
        url, key, _ = at(process)
        first = trained(url, key, 0)
        assert first.status_code == 200 and first.json()["step"] == 1, first.text
        lost = trained(url, key, 1)
        assert lost.status_code == 503 and lost.headers["retry-after"] == str(RETRY_AFTER), lost.text
        assert "another rank is gone" in lost.json()["error"]["message"]
        *again, output = at(process)
        assert again == [url, key] and "the run goes on from its last checkpoint" in output
        second = trained(url, key, 1)
        assert second.status_code == 200 and second.json()["step"] == 2, second.text
        os.kill(process.pid, signal.SIGINT)
        status, output = finished(process)
        assert status == 0 and (place / "served" / "model" / "config.json").exists(), output
    finally:
        process.kill()


class Watched:
    """A learner whose updates do `instead`. asked: what it was asked to do from then on."""

    def __init__(self, learner, instead):
        self.__dict__.update(learner=learner, instead=instead, asked=None)

    def __getattr__(self, name):
        if self.asked is not None:
            self.asked.append(name)
        return getattr(self.learner, name)

    def __setattr__(self, name, value):
        if self.asked is not None:
            self.asked.append(name)
        setattr(self.learner, name, value)

    def update(self, number):
        self.__dict__["asked"] = []
        return self.instead(number)


def test_a_rank_without_memory_ends_this_life_and_writes_nothing_more(tmp_path):
    lost = pytest.raises(OutOfMemory, match="rank 0 was out of memory")  # though clients alone were told
    with lost, serving(tmp_path / "run") as model:

        def short(number):
            raise OutOfMemory("rank 0 was out of memory with a micro-batch of 80 tokens", 40)

        requests = [body(asyncio.run(collected(model))) | {"learning_rate": 1e-3} for _ in range(2)]
        model.run.learner = Watched(model.run.learner, short)
        for request in requests:
            response = post(model, "/train", request)
            assert response.status_code == 503 and response.headers["retry-after"] == str(RETRY_AFTER)
            assert "rank 0 was out of memory" in response.json()["error"]["message"]
        assert isinstance(model.lost, OutOfMemory)  # what `gspo serve` ends with
    assert model.run.learner.asked == []  # the other ranks are in the middle of a pass, and would not answer
    assert not (tmp_path / "run" / "model").exists()


def test_sigterm_in_a_step_finishes_it_on_all_ranks_and_saves(place):
    """The client that waits for the step has its response."""
    waits = "wait", 0, "gspo.learner.update:Updater._pass", 1
    process = begin(place, "served", "--scale.ranks=2", "--train.save_every=9", command="serve", faults=[waits])
    try:
        url, key, _ = at(process)
        with ThreadPoolExecutor() as client:
            response = client.submit(trained, url, key, 0)
            wait_for((place / "reached").exists, process=process)
            process.send_signal(signal.SIGTERM)
            while "finishing what is under way" not in (line := process.stdout.readline()):
                assert line
            (place / "reached").unlink()
            assert response.result(PATIENCE).json()["step"] == 1
        status, output = finished(process)
        assert status == 0, output
    finally:
        process.kill()
    (saved,) = checkpoint.steps(place / "served" / "checkpoints")
    assert checkpoint.read_state(saved, checkpoint.LEARNER)["optimizer"]["updates"] == 1 and not disk.damage(saved)
    assert checkpoint.read_state(saved)["version"] == 1 and (place / "served" / "model" / "config.json").exists()
