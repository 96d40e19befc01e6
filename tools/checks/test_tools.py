"""The scripts that redesigns are held to: what differs between two runs, and what is counted in the source."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tools"))

import mutants  # noqa: E402
import same  # noqa: E402
import shape  # noqa: E402

LINE = {"step": 1, "loss": 0.1, "time/step": 2.0, "tokens_per_second": 9.0}


def run(folder, *lines):
    folder.mkdir()
    for name in ("metrics", "rollouts", "evaluations"):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.mark.parametrize(
    ("line", "renamed", "differences"),
    [
        (LINE | {"time/step": 5.0, "tokens_per_second": 1.0}, {}, []),
        (LINE | {"loss": 0.1 + 2e-17}, {}, ["loss: 0.1 became 0.1"]),
        (LINE | {"kl": 0.0}, {}, ["kl: 'missing' became 0.0"]),
        ({"step": 1, "nll": 0.1}, {"loss": "nll"}, []),
        ({"step": 1, "nll": 0.1}, {}, ["loss: 0.1 became 'missing'", "nll: 'missing' became 0.1"]),
    ],
)
def test_every_number_counts_but_times(tmp_path, line, renamed, differences):
    found = list(same.compare(run(tmp_path / "base", LINE), run(tmp_path / "new", line), renamed))
    assert [text.split(", ", 2)[2][: len(want)] for text, want in zip(found, differences * 3)] == differences * 3
    assert len(found) == 3 * len(differences)  # in each of three files


def test_runs_of_other_lengths_and_empty_ones_differ(tmp_path):
    one, two, none = run(tmp_path / "one", LINE), run(tmp_path / "two", LINE, LINE), run(tmp_path / "none")
    assert any("1 lines became 2" in text for text in same.compare(one, two, {}))
    assert any("0 lines became 0" in text for text in same.compare(none, none, {}))  # nothing ran: no success


def test_imports_are_followed_to_their_end(tmp_path):
    source = tmp_path / "gspo"
    source.mkdir()
    for name, text in {"a": "from gspo import b", "b": "from gspo.c import x", "c": "x = 1", "__init__": ""}.items():
        (source / f"{name}.py").write_text(text)
    graph = shape.imports(shape.modules(source))
    assert graph == {"gspo": set(), "gspo.a": {"gspo.b"}, "gspo.b": {"gspo.c"}, "gspo.c": set()}
    assert shape.longest_chain(graph) == ["gspo.a", "gspo.b", "gspo.c"]


def test_no_script_takes_an_option_that_it_does_not_know_for_none():
    """A script with an unread `--list` began two hours of work. Those of a cell are told by another script what to do."""
    scripts = [
        path for folder in ("lab/studies", "lab/speed", "docs", "tools") for path in sorted((ROOT / folder).glob("*.py"))
    ]
    run_by_hand = [path for path in scripts if "__main__" in path.read_text() and not path.stem.endswith("_cell")]
    assert len(run_by_hand) > 20
    assert [path.name for path in run_by_hand if "parse_args(" not in path.read_text()] == []
    words = [sys.executable, str(ROOT / "lab" / "studies" / "report.py"), "--list"]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, cwd=ROOT)
    assert ended.returncode == 2 and "unrecognized arguments: --list" in ended.stderr


def test_no_two_scripts_have_one_name():
    """Tests put these folders on the path: of two with one name, each process would have the one that it imported first."""
    names = [path.stem for folder in ("tools", "lab/speed", "lab/studies") for path in (ROOT / folder).glob("*.py")]
    assert len(names) > 50 and sorted(names) == sorted(set(names))


def test_every_mutant_still_finds_its_text():
    found = mutants.chosen([])
    assert len(found) >= 32 and len({mutant.name for mutant in found}) == len(found)
    for mutant in found:
        text = (ROOT / mutant.file).read_text()
        assert mutant.changed(text) != text
