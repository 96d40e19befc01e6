"""Real processes of ours: how they are asked, what they may do, what they get, and what becomes of their messages."""

import os

import pytest

from gspo.workers import processes
from gspo.workers.processes import Lost, Process
from tests.data.wishes import started
from tests.patience import PATIENCE

__all__ = ["started"]


def test_it_has_its_request_and_its_chatter_goes_elsewhere(started, capfd, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    process = started("talk")
    assert process.receive(PATIENCE) == ["", "0", "3"]  # nothing to read, one hash seed, the threads that were asked for
    assert process.popen.wait() == 0
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", "chatter\n")
    with pytest.raises(Lost, match="died \\(exit status 0\\)"):
        process.receive(PATIENCE)


def test_ctrl_c_is_not_for_it(started):
    assert started("interrupt").receive(PATIENCE) == "still here"


def test_what_it_sends_is_bounded_and_never_run(started):
    for wish, why in (("too long a message", "broke its connection|died"), ("a pickle", "sent no message")):
        with pytest.raises(Lost, match=why):
            started(wish).receive(PATIENCE)


def test_a_process_that_stalls_is_given_up(started, monkeypatch):
    process = started("read nothing")
    with pytest.raises(TimeoutError):
        process.receive(0.0)
    monkeypatch.setattr(processes, "STALLED", 1)
    process = started("read nothing")
    assert process.receive(PATIENCE) == "begun"
    with pytest.raises(Lost, match="does not read what it is sent"):
        process.send(bytes(10_000_000))
    with pytest.raises(Lost, match="does not finish its message"):
        started("half a message").receive(PATIENCE)


SECRETS = {
    "HF_TOKEN", "OPENAI_API_KEY", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "https_proxy", "MY_PASSWORD", "SSH_AUTH_SOCK",
}  # fmt: skip


def test_its_environment_holds_no_secrets(started, monkeypatch):
    for name in (*SECRETS, "LC_ALL", "HF_HOME", "CUDA_VISIBLE_DEVICES", "JUDGE_KEY"):
        monkeypatch.setenv(name, "C")
    process = Process("wishes_of_processes", "environment", ["JUDGE_KEY"])
    found, _ = process.receive(PATIENCE)
    process.kill()
    assert not SECRETS & set(found)
    assert {"LC_ALL", "HF_HOME", "CUDA_VISIBLE_DEVICES", "JUDGE_KEY", "PATH", "HOME"} <= set(found)


def test_the_standard_library_comes_first_and_the_current_folder_not_at_all(started, monkeypatch, tmp_path):
    """Files beside the data are not taken for modules of Python or of the installed packages."""
    here = tmp_path / "data"
    here.mkdir()
    for name in ("pickle", "random", "json", "numpy", "sitecustomize", "usercustomize", "gspo"):
        (here / f"{name}.py").write_text("import os; os._exit(9)")
    monkeypatch.chdir(here)
    for entry in ("", str(here)):
        monkeypatch.syspath_prepend(entry)
    _, path = started("environment").receive(PATIENCE)
    assert str(here) not in path and str(tmp_path) in path
    assert path[0] == os.path.dirname(os.__file__)
