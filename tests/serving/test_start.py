import asyncio
import signal
from urllib.parse import urlsplit

import httpx
import pytest

import gspo
from gspo.runs.folder import RunFolder
from tests.agents.talking import tokenizer
from tests.serving.served import post, serving, tiny
from tests.serving.tools import GOOD


def test_it_listens_within_the_context_alone(tmp_path):
    with serving(tmp_path / "run") as model:
        address = model.base_url.removesuffix("/v1") + "/health"
        assert httpx.get(address).status_code == 200
        with pytest.raises(RuntimeError, match="another process is writing"):
            RunFolder.resume(tmp_path / "run")
    with pytest.raises(httpx.ConnectError):
        httpx.get(address)
    RunFolder.resume(tmp_path / "run").close()  # it has let go of it


def test_the_model_is_written_and_without_a_step_no_checkpoint(tmp_path):
    made = tiny()

    async def play():
        async with serving(tmp_path / "run", hf=made) as model:
            assert model.step == 0

    asyncio.run(play())
    saved = type(made.model).from_pretrained(tmp_path / "run" / "model")
    assert all((a == b).all() for a, b in zip(saved.parameters(), made.model.parameters()))
    assert not list((tmp_path / "run" / "checkpoints").iterdir()) and not (tmp_path / "run" / "report.html").exists()


def test_the_report_tells_of_the_error_that_ended_it(tmp_path):
    async def play():
        async with serving(tmp_path / "run") as model:
            await model.log(metrics={"val/reward": 1.0}, step=1)
            raise LookupError("user code broke")

    with pytest.raises(LookupError):
        asyncio.run(play())
    assert "user code broke" in (tmp_path / "run" / "report.html").read_text()


def test_ctrl_c_in_a_script_leaves_a_report(tmp_path):
    with pytest.raises(KeyboardInterrupt), serving(tmp_path / "run") as model:
        asyncio.run(model.log(metrics={"val/reward": 1.0}, step=1))
        signal.raise_signal(signal.SIGINT)
    assert (tmp_path / "run" / "report.html").exists()


def test_a_report_that_cannot_be_written_is_warned_of(tmp_path):
    async def play():
        async with serving(tmp_path / "run") as model:
            await model.log(metrics={"val/reward": 1.0}, step=1)
            (tmp_path / "run" / "figures").rmdir()
            (tmp_path / "run" / "figures").symlink_to(tmp_path)

    with pytest.warns(UserWarning, match="the report could not be written"):
        asyncio.run(play())
    assert (tmp_path / "run" / "model").is_dir()


def test_what_cannot_work_is_refused_at_the_call(tmp_path):
    made = tiny()
    with pytest.raises(ValueError, match="a loaded model needs its tokenizer"):
        gspo.serve(made.model, log={"dir": str(tmp_path / "run")})
    with pytest.raises(ValueError, match=r"model\.path is required"):
        gspo.serve()
    with pytest.raises(ValueError, match=r"eval\.every = 1: agents evaluate themselves"):
        gspo.serve(made.model, tokenizer=tokenizer("chatml"), eval={"every": 1})
    assert not (tmp_path / "run").exists()


def test_where_nothing_can_listen_nothing_is_loaded(tmp_path):
    with (
        pytest.raises(ValueError, match="nothing can listen there"),
        serving(tmp_path / "run", serve={"host": "203.0.113.1"}),
    ):
        pass
    assert not (tmp_path / "run").exists()


def test_what_fails_as_it_starts_lets_go_of_all(tmp_path):
    with (
        pytest.raises(ValueError, match=r"task\.template_args\.more"),
        serving(tmp_path / "run", task={"template_args": {"more": 1}}),
    ):
        pass
    RunFolder.resume(tmp_path / "run").close()


def test_an_address_that_others_can_reach_is_warned_of(tmp_path):
    warned = []
    for host in ("0.0.0.0", "127.0.0.1"):
        with serving(tmp_path / host, serve={"host": host}) as model:
            assert urlsplit(model.base_url).hostname == "127.0.0.1"
            assert httpx.get(f"{model.base_url}/models").status_code == 401  # the key is needed wherever it listens
            assert post(model, "/chat/completions", GOOD).status_code == 200
        warned.append("other machines can reach the endpoint" in (tmp_path / host / "events.jsonl").read_text())
    assert warned == [True, False]


@pytest.mark.parametrize("host", ["", " "])
def test_an_empty_address_is_refused(tmp_path, host):
    made = tiny()
    with pytest.raises(ValueError, match=r"serve\.host = .*every address.*0\.0\.0\.0"):
        gspo.serve(made.model, tokenizer=made.tokenizer, serve={"host": host}, log={"dir": str(tmp_path / "run")})
