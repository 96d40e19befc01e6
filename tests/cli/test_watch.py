"""gspo watch; tests/report/test_live.py has what it serves."""

import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from gspo.cli.main import main
from tests.report.drawing import write


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_prints_its_address_and_ends_well(tmp_path, number):
    folder = write(tmp_path / "run", [{"step": 1, "reward": 0.5}])
    words = [sys.executable, "-m", "gspo", "watch", str(folder)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            url = process.stdout.readline().strip()
            assert b"Mean reward 0.50" in urllib.request.urlopen(url).read()
            process.send_signal(number)
            _, errors = process.communicate()
        finally:
            process.kill()
    assert process.returncode == 0 and "Traceback" not in errors


def test_a_port_in_use_and_a_folder_that_is_no_run(tmp_path, capsys):
    folder = write(tmp_path / "run", [{"step": 1, "reward": 0.5}])
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["watch", str(folder), f"--port={port}"]) == 2
    text = f"--port {port}: Address already in use; give another, or leave it out to get a free one"
    assert text in capsys.readouterr().err
    assert main(["watch", str(tmp_path)]) == 2 and "not a run folder" in capsys.readouterr().err
    assert main(["watch", str(folder), "--port=65536"]) == 2
    assert "must be a whole number from 1 to 65535" in capsys.readouterr().err
