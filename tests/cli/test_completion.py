"""gspo --install-completion: the script that it writes, read by bash."""

import subprocess

import pytest

from gspo.cli.main import main
from gspo.config.recipes import recipes


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    folder, said = tmp_path_factory.mktemp("data"), []
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setenv("XDG_DATA_HOME", str(folder))
        patch.setattr("builtins.print", said.append)
        main(["--install-completion"])
    path = folder / "bash-completion" / "completions" / "gspo"
    assert ended.value.code == 0 and said[0].startswith(f"completion {path}\n")
    return path


def completed(script, line):
    """What bash offers at the end of a line, whose words it breaks at colons too."""
    words = line.replace(":", " : ").split() + ([""] if line.endswith(" ") else [])
    last = "" if line[-1] in " :" else words[-1]
    ask = (
        f"source '{script}'; COMP_WORDS=({' '.join(word or repr(word) for word in words)}); COMP_CWORD={len(words) - 1}\n"
        f"COMP_LINE='{line}'; COMP_POINT={len(line)}; _gspo gspo '{last}' ''\n"
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    return subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True).stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("gspo tr", {"train"}),
        ("gspo train --res", {"--resume"}),
        ("gspo train --mod", {"--model"}),
        ("gspo train run.toml --optimizer.l", {"--optimizer.lr"}),
        ("gspo eval --benchm", {"--benchmark"}),
        ("gspo demo --optimizer.l", set()),
        ("gspo train recipe:smollm2-w", {"smollm2-words"}),
        ("gspo compare recipe:", set(recipes())),
        ("gspo train ", set()),  # files
    ],
)
def test_bash_completes(script, line, offered):
    found = set(completed(script, line))
    assert found == offered or (line.endswith("--mod") and found > offered)


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    assert main(["--install-completion"]) == 1
    assert "gspo: error: " in capsys.readouterr().err
