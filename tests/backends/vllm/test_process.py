import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from gspo.backends.vllm.process import LocalEngine, LocalHost, environment, free_port
from tests.backends.vllm.engines import until

RANK = {
    "RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "ROLE_RANK": "1",
    "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "TORCHELASTIC_RESTART_COUNT": "1", "TORCHELASTIC_RUN_ID": "a",
    "TORCHELASTIC_USE_AGENT_STORE": "True", "GSPO_PARENT": "12", "GSPO_BEGAN": "1.5", "GSPO_ENGINES": "{}",
    "GSPO_SETTINGS": "[task]",
}  # fmt: skip
TELLS = "import json, os, sys; print(json.dumps(dict(os.environ))); sys.stdout.flush(); sys.stdin.read()"


def test_what_a_started_server_finds_in_its_environment(tmp_path, monkeypatch):
    """A real process, started by what might be a rank of a run."""
    for name, value in (RANK | {"CUDA_VISIBLE_DEVICES": "0,1", "HF_HOME": "/hub", "NCCL_DEBUG": "INFO"}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    log = tmp_path / "vllm.log"
    process = LocalEngine([sys.executable, "-c", TELLS], log, {"CUDA_VISIBLE_DEVICES": "7", "GSPO_KEY": "secret"})
    until(lambda: log.read_text().endswith("\n"))
    found = json.loads(log.read_text())
    assert not set(RANK) & set(found)
    assert {name: found.get(name) for name in ("HF_HOME", "NCCL_DEBUG", "PATH")} == {
        "HF_HOME": "/hub", "NCCL_DEBUG": "INFO", "PATH": os.environ["PATH"],
    }  # fmt: skip
    own = {"CUDA_VISIBLE_DEVICES": "7", "GSPO_KEY": "secret", "GSPO_OWNED": "1", "VLLM_NO_USAGE_STATS": "1"}
    assert own | {"VLLM_CPU_KVCACHE_SPACE": "4"} == {name: found[name] for name in (*own, "VLLM_CPU_KVCACHE_SPACE")}
    assert os.getsid(process.pid) != os.getsid(0)  # Ctrl-C is the trainer's
    process.end()


def test_whoever_sets_a_variable_is_heard():
    assert environment({"VLLM_CPU_KVCACHE_SPACE": "7"}, {})["VLLM_CPU_KVCACHE_SPACE"] == "7"
    assert environment({"VLLM_CPU_KVCACHE_SPACE": "7"}, {"VLLM_CPU_KVCACHE_SPACE": "8"})["VLLM_CPU_KVCACHE_SPACE"] == "8"


def test_an_end_takes_what_the_server_has_started(tmp_path):
    """Also where the server itself has gone."""
    code = "import os, time\nprint(os.fork(), flush=True)\ntime.sleep(10_000)"
    process = LocalEngine([sys.executable, "-c", code], tmp_path / "log", {})
    until(lambda: (tmp_path / "log").read_text().count("\n") == 2)
    child = next(int(n) for n in (tmp_path / "log").read_text().split() if n != "0")
    os.kill(process.pid, signal.SIGKILL)
    process.end()
    assert process.poll() == -signal.SIGKILL
    stat = Path(f"/proc/{child}/stat")
    until(lambda: not stat.exists() or " Z " in stat.read_text())


@pytest.mark.parametrize("forks", [False, True])
def test_its_standard_input_closes_when_its_trainer_is_gone(tmp_path, forks):
    """By that a server of ours ends, whatever has killed the trainer; also where a child that it forked lives on."""
    reads = "import sys; sys.stdin.read(); print('closed', flush=True)"
    begins = (
        "import os, sys, time; from pathlib import Path; from gspo.backends.vllm.process import LocalHost\n"
        f"LocalHost().begin([sys.executable, '-c', {reads!r}], Path('log'), {{}})\n"
        f"child = os.fork() if {forks} else os.getpid()\n"
        "if not child:\n    os.close(1)\n    time.sleep(10_000)\n"
        "print(child, flush=True)\ntime.sleep(10_000)"
    )
    trainer = subprocess.Popen([sys.executable, "-c", begins], cwd=tmp_path, stdout=subprocess.PIPE)
    child = int(trainer.stdout.readline())
    try:
        trainer.kill()
        trainer.communicate()
        until(lambda: (tmp_path / "log").read_text() == "closed\n")
    finally:
        if forks:
            os.kill(child, signal.SIGKILL)


def test_a_free_port_can_be_listened_at():
    with socket.socket() as listener:
        listener.bind((LocalHost.address, LocalHost().free_port()))
    with pytest.raises(OSError):
        free_port("203.0.113.1")  # another machine's
