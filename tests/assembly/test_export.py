"""`gspo export`: of runs, checkpoints and model folders; merged; and to a Hub."""

import base64
import json
import os
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import gspo
from gspo.assembly.export import export, named
from gspo.cli.main import main
from tests.tiny_run import ROWS, likes_a, model, settings

IDS = torch.arange(6)[None] + 2


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A run of all weights, and one of adapters on a model in a folder."""
    folder = tmp_path_factory.mktemp("export")
    model().save(folder / "base")
    for name, rank in (("whole", 0), ("lora", 4)):
        config = settings(
            folder / name, lora={"rank": rank}, train={"steps": 3, "save_every": 2}, optimizer={"lr": 0.1}, eval={"every": 0}
        )
        gspo.train(str(folder / "base"), ROWS, likes_a, config=config)
    return folder


@torch.no_grad()
def logits(folder):
    return AutoModelForCausalLM.from_pretrained(folder)(IDS).logits


@pytest.mark.parametrize("source", ["whole", "whole/model", "whole/checkpoints/step_000003"])
def test_the_model_of_a_run_a_checkpoint_and_a_folder(place, tmp_path, source, capsys):
    assert main(["export", str(place / source), "--out", str(tmp_path / "a" / "out")]) == 0
    assert capsys.readouterr().out == f"model   {tmp_path / 'a' / 'out'}\n"
    assert logits(tmp_path / "a" / "out").equal(logits(place / "whole" / "model"))
    assert not logits(tmp_path / "a" / "out").equal(logits(place / "base"))
    assert AutoTokenizer.from_pretrained(tmp_path / "a" / "out").encode("1+1") == model().tokenizer.encode("1+1")


def test_an_adapter_is_merged_into_a_whole_model_or_stays_one(place, tmp_path):
    export(place / "lora", tmp_path / "alone")
    export(place / "lora", tmp_path / "merged", merge=True)
    alone, merged = logits(tmp_path / "alone"), logits(tmp_path / "merged")
    assert not (tmp_path / "alone" / "model.safetensors").exists()
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in (tmp_path / "merged").iterdir()}
    assert not (tmp_path / "merged" / "adapter_config.json").exists()
    settings = place / "lora" / "config.toml"
    text = settings.read_text()
    settings.write_text(text.replace('attention = "sdpa"', 'attention = "flash_attention_2"'))  # as trained on a GPU
    assert settings.read_text() != text
    export(settings.parent, tmp_path / "again", merge=True)
    settings.write_text(text.replace("trust_remote_code = false", "trust_remote_code = true"))
    assert all(named(settings.parent / part).trust_remote_code for part in ("", "model"))
    settings.write_text(text)
    assert torch.equal(logits(tmp_path / "again"), merged)
    assert torch.allclose(alone, merged, atol=1e-5) and not torch.allclose(alone, logits(place / "base"), atol=1e-3)


def test_a_run_that_is_not_over_gives_its_newest_checkpoint(place, tmp_path):
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"run: holds no model yet; give a run folder, a checkpoint or a model"):
        export(run)
    for step in (2, 3):
        (run / "checkpoints" / f"step_{step:06d}").symlink_to(place / "whole" / "checkpoints" / f"step_{step:06d}")
    assert export(run) == str(run / "export")  # where it goes unless told
    assert logits(run / "export").equal(logits(place / "whole" / "model"))


def test_a_run_that_went_on_after_its_end_gives_what_is_newer(place, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(place / "whole" / "checkpoints" / "step_000002", run / "checkpoints" / "step_000002")
    shutil.copytree(place / "base", run / "model")
    for folder, day in (("model", 2), ("checkpoints/step_000002", 1)):
        os.utime(run / folder, (day * 86400, day * 86400))
    assert logits(export(run, tmp_path / "first")).equal(logits(place / "base"))
    os.utime(run / "checkpoints/step_000002", (3 * 86400, 3 * 86400))
    assert logits(export(run, tmp_path / "then")).equal(logits(run / "checkpoints/step_000002/model"))


def test_what_cannot_be_exported(place, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    for source, options, message in (
        (place / "none", {}, "none: no such folder; give a run folder"),
        (place / "whole", {"merge": True}, "--merge: the model in .*whole/model is whole, without an adapter"),
        (place / "whole", {"out": tmp_path / "full"}, "--out .*full: exists already; give another folder"),
        (place / "whole" / "model", {"out": None}, "model: is no run folder, so name the folder to write into: --out DIR"),
        (place / "whole", {"out": place / "whole/model/out"}, "--out .*: lies in the model's own folder"),
        (place / "whole", {"push": "a/b/c"}, "--push a/b/c: Repo id must be"),
        (place / "lora", {"push": "me/mine"}, r"needs its base model, .*/base, which only you have: add --merge"),
    ):
        with pytest.raises(ValueError, match=message):
            export(source, **{"out": tmp_path / "out"} | options)
    assert not (tmp_path / "out").exists()
    damaged = tmp_path / "step_000003"
    shutil.copytree(place / "whole" / "checkpoints" / "step_000003", damaged)
    (damaged / "model" / "config.json").write_text("{}")
    with pytest.raises(RuntimeError, match=r"model/config\.json is damaged"):
        export(damaged, tmp_path / "out")


class Hub(BaseHTTPRequestHandler):
    """As much of the Hub as it takes to make a repository and to commit small files to it."""

    def do_GET(self):
        self.answer(404, {"error": "not here"})

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        where, token = self.path, self.headers.get("authorization")
        home = f"http://127.0.0.1:{self.server.server_port}/me/mine"
        self.server.seen.append((where, body))
        if token != "Bearer hf_right":
            self.answer(401, {"error": "Invalid username or password."})
        elif where == "/api/repos/create":
            self.answer(200, {"url": home, "name": "me/mine", "id": "me/mine"})
        elif "/preupload/" in where:
            names = [file["path"] for file in json.loads(body)["files"]]
            self.answer(200, {"files": [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]})
        elif "/commit/" in where:
            commit = "0123456789" * 4
            self.answer(200, {"commitUrl": f"{home}/commit/{commit}", "commitOid": commit, "success": True})
        else:
            self.answer(404, {"error": where})

    def answer(self, status, body):
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def hub():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.seen = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def push(place, tmp_path, hub, monkeypatch):
    """`gspo export --merge --push` to this address with a token."""

    def run(token="hf_right", address=f"http://127.0.0.1:{hub.server_port}", offline=False):
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", offline)
        monkeypatch.setenv("HF_TOKEN", token)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        return main(["export", str(place / "lora"), "--merge", "--push", "me/mine", "--out", str(tmp_path / "out")])

    return run


def test_a_model_is_sent_to_the_hub(hub, push, tmp_path, capsys):
    assert push() == 0
    assert capsys.readouterr().out == f"model   http://127.0.0.1:{hub.server_port}/me/mine\n"
    made = json.loads(next(body for where, body in hub.seen if where == "/api/repos/create"))
    assert made.get("private") is True or made.get("visibility") == "private"  # by the version of the library
    (commit,) = (body for where, body in hub.seen if "/commit/" in where)
    sent = {
        line["value"]["path"]: base64.b64decode(line["value"]["content"])
        for line in map(json.loads, commit.splitlines())
        if line["key"] == "file"
    }
    assert sent == {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}


@pytest.mark.parametrize("options", [{"token": "hf_wrong"}, {"address": "http://127.0.0.1:9"}, {"offline": True}], ids=str)
def test_a_hub_that_takes_nothing_is_told_and_the_model_stays(push, tmp_path, capsys, options):
    assert push(**options) == 1
    error = capsys.readouterr().err
    assert error.startswith("gspo: error: --push me/mine: the Hub did not take it (") and error.count("\n") == 1
    assert f"`hf upload me/mine {tmp_path / 'out'}`" in error
    assert (tmp_path / "out" / "model.safetensors").exists()
