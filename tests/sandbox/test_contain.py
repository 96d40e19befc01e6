"""No program gets out of its sandbox: files, network, processes, kernel. A plain process is the control that does."""

import json
import os
import platform
import socket
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest

import gspo
from gspo.sandbox.open import open_sandbox
from gspo.sandbox.types import Case, Limits, Program
from tests.sandbox.attacks import CONTAIN, LEAKS, program
from tests.sandbox.boxes import box_of, of_abi

TOKEN = "gspo-attack-token-5150"
USER = 54_321
"""An ordinary user for tests that run as root."""

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="the attempts use the numbers of x86-64")


@pytest.fixture(scope="module")
def host(folder_of_all):
    """What there is to be had outside: only the sandbox keeps a program from it."""
    folder = folder_of_all
    secret = folder / "secret"
    secret.write_text(TOKEN)
    secret.chmod(0o666)
    os.environ["GSPO_ATTACK_TOKEN"] = TOKEN
    servers = [socket.socket(), socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)]
    abstract = f"gspo-attack-{os.getpid()}"
    for server, address in zip(servers, (("127.0.0.1", 0), f"{folder}/unix", f"\0{abstract}")):
        server.bind(address)
        server.listen()
    datagrams = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    datagrams.bind(f"{folder}/datagrams")
    datagrams.setblocking(False)
    for name in ("unix", "datagrams"):
        os.chmod(f"{folder}/{name}", 0o777)
    yield {
        "datagrams": f"{folder}/datagrams",
        "token": TOKEN, "secret": str(secret), "port": servers[0].getsockname()[1], "unix": f"{folder}/unix",
        "abstract": abstract, "home": os.path.expanduser("~"), "site": sysconfig.get_path("purelib"),
        "sources": str(Path(gspo.__file__).parent),
    }  # fmt: skip
    for server in (*servers, datagrams):
        server.close()
    del os.environ["GSPO_ATTACK_TOKEN"]


def attempt(box, host, name):
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


@pytest.mark.parametrize("name", CONTAIN)
def test_no_attempt_succeeds(box, host, name):
    attempt(box, host, name)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_no_attempt_succeeds_in_an_older_landlock(monkeypatch, subtests, host, version):
    box = of_abi(monkeypatch, version)
    for name in CONTAIN:
        with subtests.test(name):
            attempt(box, host, name)


@pytest.mark.parametrize("name", LEAKS)
def test_without_a_sandbox_they_succeed(host, name):
    source = program(CONTAIN[name], host)
    done = subprocess.run([sys.executable, "-c", source], input="in", capture_output=True, text=True)
    Path(host["secret"]).write_text(TOKEN)
    assert "BREACH" in done.stdout, (done.stdout, done.stderr)


def of_a_user(work, folder):
    """What `work` says to a sandbox of Landlock that an ordinary user opens: a list."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            if os.geteuid() == 0:
                os.setgroups([])
                os.setgid(USER)
                os.setuid(USER)
                sys.executable = "/usr/bin/python3"  # root's own may be closed to others
            os.environ["XDG_CACHE_HOME"] = tempfile.tempdir = str(folder)
            os.write(write, json.dumps(work(open_sandbox("landlock"))).encode())
        except BaseException as error:
            os.write(write, json.dumps([f"{type(error).__name__}: {error}"]).encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, "rb") as file:
        said = json.loads(file.read())
    os.waitpid(pid, 0)
    return said


def test_an_ordinary_user_loses_nothing_of_his_own(host, folder_of_all):
    """The programs are his: only the filter keeps them from emptying his files."""
    if not os.path.exists("/usr/bin/python3"):
        pytest.skip("there is no Python that any user may run")
    box_of("landlock")
    folder = folder_of_all / "user"
    folder.mkdir()
    folder.chmod(0o777)

    def work(box):
        secret = folder / "secret"
        secret.write_text(TOKEN)
        found = []
        for name in CONTAIN:
            (outcome,) = box.run(Program(program(CONTAIN[name], host | {"secret": str(secret)})), [Case("in")])
            if "BREACH" in outcome.stdout or secret.read_text() != TOKEN:
                found.append(f"{name}: {outcome}")
        (outcome,) = box.run(Program("import tempfile\nprint(tempfile.TemporaryFile().write(b'abc'))"), [Case("")])
        if outcome.stdout != "3\n" or list(folder.glob("gspo-scratch-*")):
            found.append(f"a temporary file: {outcome}")
        return found

    assert of_a_user(work, folder) == []
