"""No program gets out of its sandbox: files, network, processes, kernel. A plain process is the control that does."""

import os
import platform
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import gspo
from gspo.sandbox.types import Case, Limits, Program
from tests.sandbox.attacks import CONTAIN, LEAKS, program

TOKEN = "gspo-attack-token-5150"

pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the attempts use the numbers of x86-64"),
]


@pytest.fixture(scope="module")
def host(folder_of_all):
    """What there is to be had outside: only the sandbox keeps a program from it."""
    folder = folder_of_all
    secret = folder / "secret"
    secret.write_text(TOKEN)
    secret.chmod(0o666)
    before, os.environ["GSPO_ATTACK_TOKEN"] = os.environ.get("GSPO_ATTACK_TOKEN"), TOKEN
    servers = [socket.socket(), socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)]
    abstract = f"gspo-attack-{os.getpid()}"
    for server, address in zip(servers, (("127.0.0.1", 0), f"{folder}/unix", f"\0{abstract}")):
        server.bind(address)
        server.listen()
    os.chmod(f"{folder}/unix", 0o777)
    yield {
        "token": TOKEN, "secret": str(secret), "port": servers[0].getsockname()[1], "unix": f"{folder}/unix",
        "abstract": abstract, "home": os.path.expanduser("~"), "site": sysconfig.get_path("purelib"),
        "sources": str(Path(gspo.__file__).parent),
    }  # fmt: skip
    for server in servers:
        server.close()
    del os.environ["GSPO_ATTACK_TOKEN"]
    if before is not None:
        os.environ["GSPO_ATTACK_TOKEN"] = before


@pytest.mark.parametrize("name", CONTAIN)
def test_no_attempt_succeeds(box, host, name):
    source = program(CONTAIN[name], host)
    before = Path(host["secret"]).read_text()
    (outcome,) = box.run(Program(source), [Case("in")], Limits(seconds=2.0, memory=1 << 28))
    assert "BREACH" not in outcome.stdout, outcome
    assert "held" in outcome.stdout or "SIGSYS" in outcome.detail or outcome.status == "timeout", outcome
    assert Path(host["secret"]).read_text() == before
    assert not any(
        Path(folder, "gspo-attack").exists() for folder in ("/usr/lib", "/etc", "/", "/dev/shm", "/dev", "/var/tmp")
    )
    if name == next(reversed(CONTAIN)) or name.startswith("processes"):  # the next program is run as ever
        assert box.run(Program("print(input())"), [Case("still here")])[0].stdout == "still here\n"


@pytest.mark.parametrize("name", LEAKS)
def test_without_a_sandbox_they_succeed(host, name):
    done = subprocess.run([sys.executable, "-c", program(CONTAIN[name], host)], input="in", capture_output=True, text=True)
    Path(host["secret"]).write_text(TOKEN)
    assert "BREACH" in done.stdout, (done.stdout, done.stderr)
