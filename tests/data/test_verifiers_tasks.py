import sys

import pytest

import gspo


def test_a_library_that_is_not_installed_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "verifiers", None)
    monkeypatch.setitem(sys.modules, "verifiers.v1", None)
    with pytest.raises(ValueError, match=r"verifiers:gsm8k' needs verifiers: pip install 'gspo\[verifiers\]'"):
        gspo.train("a model", task={"source": "verifiers:gsm8k"}, log={"dir": str(tmp_path / "run")})
    with pytest.raises(ValueError, match=r"pip install 'gspo\[verifiers\]'"):
        gspo.evaluate(config={"model": {"path": "a model"}, "task": {"source": "verifiers:gsm8k"}})
    assert not (tmp_path / "run").exists()
