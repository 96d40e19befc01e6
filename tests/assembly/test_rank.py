"""Commands beside `gspo train` on several ranks, and processes that cannot lead them."""

import json
import os
import socket
import subprocess
import sys

import pytest

import gspo
from gspo.assembly import rank
from gspo.config.scale import ScaleConfig
from tests import tiny_run
from tests.launch.started import apart
from tests.patience import PATIENCE


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("crew")
    tiny_run.model(tie_word_embeddings=False).save(folder / "model")
    rows = [{"prompt": row["prompt"], "answer": row["answer"], "completion": f"{row['answer']}"} for row in tiny_run.ROWS]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    paths = f'model.path = "{folder / "model"}"\ntask.source = "{folder / "rows.jsonl"}"\n'
    (folder / "run.toml").write_text(f"{paths}train.steps = 2\neval.num_prompts = 0\noptimizer.eps = 1e-3\n")
    return folder


def run(place, *words, **more):
    return subprocess.run([sys.executable, *words], cwd=place, capture_output=True, text=True, timeout=PATIENCE, **more)


def test_supervised_training_on_two_ranks(place):
    for name, more in (("sft", []), ("sft-2", ["--scale.ranks=2"])):
        done = run(place, "-m", "gspo", "sft", "run.toml", f"--log.dir={name}", "--train.batch_size=8", *more)
        assert done.returncode == 0, done.stderr
    assert apart(place, "sft", "sft-2") < 1e-6


@pytest.mark.parametrize(
    "scale, message",
    [
        ({"ranks": 2}, "scale.ranks = 2, but this process is rank 0 of 1: start the ranks by `gspo train`"),
        ({"launcher": "ray"}, 'scale.launcher = "ray": start the ranks by `gspo train`'),
    ],
)
@pytest.mark.usefixtures("all_installed")
def test_a_script_trains_in_one_process_and_says_so(tmp_path, scale, message):
    model = tiny_run.model()
    with pytest.raises(ValueError, match=message):
        gspo.train(
            model.model, tiny_run.ROWS, tiny_run.likes_a, tokenizer=model.tokenizer,
            config=tiny_run.settings(tmp_path / "run", scale=scale),
        )  # fmt: skip


def test_a_rank_that_does_not_lead_cannot(monkeypatch):
    for name, value in (("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")):
        monkeypatch.setitem(os.environ, name, value)
    with pytest.raises(ValueError, match="rank 1 of 2"), rank.joined(ScaleConfig()):
        pass


@pytest.mark.parametrize("count, there", [(4, "4 GPUs here: start at most 4"), (1, "1 GPU here: start at most 1")])
def test_more_ranks_than_gpus_are_refused(monkeypatch, count, there):
    taken = []
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    monkeypatch.setattr("torch.cuda.device_count", lambda: count)
    monkeypatch.setattr("torch.cuda.set_device", taken.append)
    rank.take_gpu(count - 1)
    assert taken == [count - 1]
    with pytest.raises(ValueError, match=f"scale.ranks: 8 ranks were started on this machine, but torch sees {there}"):
        rank.take_gpu(count)


@pytest.mark.parametrize(
    "address, local, warned", [("127.0.1.1", 1, 1), ("10.0.0.7", 1, 0), ("127.0.1.1", 2, 0), (None, 1, 1)]
)
def test_a_machine_that_others_cannot_reach_is_told_which_variable_to_set(monkeypatch, caplog, address, local, warned):
    def resolve(name):
        if address is None:
            raise socket.gaierror
        return address

    variables = {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": local, "MASTER_ADDR": "h", "MASTER_PORT": 1}
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.delenv(rank.INTERFACE, raising=False)
    monkeypatch.setattr(socket, "gethostbyname", resolve)
    rank.warn_of_loopback()
    assert len(caplog.records) == warned and ("set GLOO_SOCKET_IFNAME" in caplog.text) == warned
    monkeypatch.setenv(rank.INTERFACE, "eth0")
    caplog.clear()
    rank.warn_of_loopback()
    assert not caplog.records
