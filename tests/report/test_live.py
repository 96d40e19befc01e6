"""The page of a run that goes on, over real connections."""

import http.client
import json
import re
import shutil
import socket
import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from gspo.report import live
from gspo.report.live import LivePage
from tests.report.drawing import write
from tests.report.fake_run import make


@contextmanager
def serving(folder):
    with LivePage(folder) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def get(server, path=None, method="GET", host=None, tag=None):
    """Status, headers and text of a response."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1])
    headers = ({"Host": host} if host is not None else {}) | ({"If-None-Match": tag} if tag else {})
    connection.request(method, server.path if path is None else path, headers=headers)
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, response.headers, text


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make(tmp_path_factory.mktemp("runs") / "demo", steps=3)


def test_the_page_refreshes_itself_and_the_browser_runs_one_script_alone(run):
    before = sorted(path.name for path in run.iterdir())
    with serving(run) as server:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}", server.url)
        status, headers, text = get(server)
    assert status == 200 and headers["Cache-Control"] == "no-store" and headers["Referrer-Policy"] == "no-referrer"
    assert "connect-src 'self'" in text and 'id="state"' in text and text.count("<script") == 1
    assert sorted(path.name for path in run.iterdir()) == before  # it only reads


@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is missing (apt-get install chromium)")
def test_a_browser_runs_the_script_and_asks_for_changes(run, tmp_path):
    words = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}", "--dump-dom"]
    with serving(run) as server:
        words += ["--virtual-time-budget=5000", server.url]
        found = subprocess.run(words, capture_output=True, text=True, check=True)
    for text in ('<html lang="en" class="scripted">', '<p id="state" role="status">live</p>', " shown</span>"):
        assert text in found.stdout


def test_nothing_is_served_without_the_token_or_to_another_site(run):
    with serving(run) as server:
        token = server.path
        for path in ("/", "/?token=", token[:-1], token + "a", "/report.html", "/../config.toml", token.replace("?", "x?")):
            assert get(server, path)[0] == 403, path
        with socket.create_connection(server.server_address) as connection:
            connection.sendall(b"GET /\xe9\xff HTTP/1.0\r\nHost: localhost:1\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.0 403")
        for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example:1", ""):
            assert get(server, host=host)[0] == 403, host
        assert get(server, host="localhost:9")[0] == 200  # a forwarded port
        for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS"):
            assert get(server, method=method)[0] == 501
        with serving(run) as other:
            assert other.path != token and get(other)[0] == 200 and get(other, token)[0] == 403


def test_the_page_follows_the_run_and_costs_nothing_while_it_waits(tmp_path, monkeypatch):
    rendered = []
    page = live.live_page
    monkeypatch.setattr(live, "live_page", lambda folder: rendered.append(1) or page(folder))
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.toml").write_text("[train]\nsteps = 4\n")
    with serving(folder) as server:
        assert "<h1>No step yet</h1>" in get(server)[2]
        (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, "reward": 0.5}) + "\n")
        _, headers, text = get(server)
        assert "Mean reward 0.50 in 1 step" in text and "Not finished: 1 of 4 steps." in text
        assert [get(server, tag=headers["ETag"])[::2] for _ in range(3)] == [(304, "")] * 3 and len(rendered) == 2
        with (folder / "metrics.jsonl").open("a") as file:
            file.write('{"step": 2, "rew')
            file.flush()
            status, headers, text = get(server, tag=headers["ETag"])
            assert status == 200 and "in 1 step" in text
            file.write('ard": 1.0}\n')
        assert "Mean reward 0.50 → 1.00 in 2 steps" in get(server, tag=headers["ETag"])[2]


def test_a_folder_that_is_deleted_and_comes_back(tmp_path):
    folder = write(tmp_path / "run", [{"step": 1, "reward": 0.5}])
    with serving(folder) as server:
        assert get(server)[0] == 200
        shutil.rmtree(folder)
        status, _, text = get(server)
        assert status == 410 and "cannot be read (No such file or directory)" in text
        write(folder, [{"step": 1, "reward": 0.25}])
        assert "0.25" in get(server)[2]


@pytest.mark.parametrize("made", [None, "notes.txt", "config.toml"])
def test_what_is_no_run_is_refused(tmp_path, made):
    folder = tmp_path / "folder"
    if made:
        folder.mkdir()
        Path(folder, made).write_text("")
    with pytest.raises(ValueError, match=rf"{folder}: (no such|not a run) folder; give the folder of a run \(log\.dir\)"):
        LivePage(folder)
