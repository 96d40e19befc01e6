"""Real processes of ours: how they are asked, what they may do, and what they get."""

import os

import pytest

from gspo.workers.processes import GONE, kill, spawn
from tests.data.wishes import heard, started

__all__ = ["started"]


def test_it_has_its_request_and_its_chatter_goes_elsewhere(started, capfd, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    process, connection = started("talk")
    assert heard(connection) == ["", "0", "3"]  # nothing to read, one hash seed, the threads that were asked for
    assert process.wait() == 0
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", "chatter\n")
    with pytest.raises(GONE):
        heard(connection)


def test_ctrl_c_is_not_for_it(started):
    _, connection = started("interrupt")
    assert heard(connection) == "still here"


SECRETS = (
    "HF_TOKEN",
    "OPENAI_API_KEY",
    "WANDB_API_KEY",
    "AWS_SECRET_ACCESS_KEY",
    "https_proxy",
    "MY_PASSWORD",
    "SSH_AUTH_SOCK",
)


def test_its_environment_holds_no_secrets(started, monkeypatch):
    for name in (*SECRETS, "LC_ALL", "HF_HOME", "CUDA_VISIBLE_DEVICES", "JUDGE_KEY"):
        monkeypatch.setenv(name, "C")
    process, connection = spawn("wishes_of_processes", "environment", ["JUDGE_KEY"])
    found, path = heard(connection)
    kill(process)
    assert not set(SECRETS) & set(found)
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
    _, connection = started("environment")
    _, path = heard(connection)
    assert str(here) not in path and str(tmp_path) in path
    assert path[0] == os.path.dirname(os.__file__)
