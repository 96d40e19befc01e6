import sys

import pytest
import torch

from gspo.config.import_function import describe, find_here, load_function, pick_device, unknown_arguments


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with modules in it, which is the current one."""
    (tmp_path / "sound_lookup.py").write_text("def half(x, by=2): return x / by\nnumber = 3\n_hidden = len\n")
    (tmp_path / "broken_lookup.py").write_text("1 / 0\n")
    (tmp_path / "needs_lookup.py").write_text("import no_such_library\n")
    (tmp_path / "leaves_lookup.py").write_text("import sys; sys.exit(0)\n")
    (tmp_path / "colorsys.py").write_text("def score(): pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


def test_only_what_is_named_is_taken_from_the_current_folder_first(here, monkeypatch):
    """It wins over installed packages. What it imports comes from the folder only if it is nowhere else."""
    elsewhere = here / "site"
    elsewhere.mkdir()
    for name in ("named_lookup", "other_lookup"):
        (elsewhere / f"{name}.py").write_text("place = 'installed'\n")
        (here / f"{name}.py").write_text("place = 'here'\n")
    (here / "own_lookup.py").write_text("place = 'here'\n")
    (here / "named_lookup.py").write_text(
        "import fractions, other_lookup, own_lookup\ndef places(): return other_lookup.place, own_lookup.place\n"
    )
    (here / "fractions.py").write_text("1 / 0\n")
    monkeypatch.delitem(sys.modules, "fractions", raising=False)
    monkeypatch.syspath_prepend(elsewhere)
    assert load_function("named_lookup:places", "k")() == ("installed", "here")
    assert sys.path[-1] == str(here)


def test_packages_of_the_current_folder(here):
    (here / "package_lookup" / "inner").mkdir(parents=True)
    (here / "package_lookup" / "__init__.py").write_text("from package_lookup.inner import value\n")
    (here / "package_lookup" / "inner" / "__init__.py").write_text("value = 5\n")
    (here / "package_lookup" / "work.py").write_text("from . import value\ndef f(): return value\n")
    assert load_function("package_lookup.work:f", "k")() == 5
    find_here("broken_package_lookup")  # not there: for others to say
    with pytest.raises(ZeroDivisionError):
        find_here("broken_lookup")
    assert "broken_lookup" not in sys.modules


UNUSABLE = [
    ("k = 'sound_lookup': expected module:function", "sound_lookup"),
    ("expected module:function", ":half"),
    ("sound_lookup has no function 'hlaf', did you mean half", "sound_lookup:hlaf"),
    ("number is an int, not a function", "sound_lookup:number"),
    ("there is no module 'nowhere_lookup' in .* or among the installed packages", "nowhere_lookup:f"),
    ("k = './a/nowhere.py:f': expected a module, not its file: write a.nowhere:f", "./a/nowhere.py:f"),
    ("importing 'broken_lookup' failed: ZeroDivisionError: division by zero", "broken_lookup:f"),
    ("importing 'leaves_lookup' failed: SystemExit: 0", "leaves_lookup:f"),
    ("it is a module of Python itself, so give a file of yours another name", "colorsys:score"),
    ("importing 'needs_lookup' failed: ModuleNotFoundError: No module named 'no_such_library'", "needs_lookup:f"),
]


def test_functions_that_cannot_be_had(here, refuses):
    refuses(lambda spec: load_function(spec, "k"), UNUSABLE)


def test_arguments_are_tried_before_the_call(here):
    half = load_function("sound_lookup:half", "k")
    assert unknown_arguments(half, {"x": 1}) == unknown_arguments(half, {"x": 1, "by": 3}) == ""
    assert unknown_arguments(half, {}) == "missing a required argument: 'x'"
    assert "unexpected keyword argument 'of'" in unknown_arguments(half, {"x": 1, "of": 2})


def test_an_error_in_one_line():
    assert describe(ValueError("two\n  lines")) == "ValueError: two lines"
    assert describe(KeyError()) == "KeyError"
    assert len(describe(ValueError("x" * 1000))) == 300


def test_devices():
    assert pick_device("cpu") == torch.device("cpu")
    assert pick_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    for name in ("gpu", "meta", "cuda:x"):
        with pytest.raises(ValueError, match=f"k = '{name}': allowed are auto, cpu, cuda, cuda:1, mps"):
            pick_device(name, "k")
    with pytest.raises(ValueError, match=r"k = 'cuda:99': this machine has .*set k = \"auto\""):
        pick_device("cuda:99", "k")
