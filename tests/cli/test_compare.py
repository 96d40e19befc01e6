"""gspo compare; tests/compare has studies."""

from gspo.cli.commands import parse
from gspo.cli.main import main


def test_a_study_is_a_file_and_goes_on_by_the_same_command(tmp_path, capsys):
    assert main(["compare", str(tmp_path / "none.toml")]) == 2
    assert "no such study file" in capsys.readouterr().err
    command, arguments = parse(["compare", "a.toml", "--dir", "~/study", "--only", "x/*"], {})
    assert arguments.dir.is_absolute() and (arguments.only, arguments.dry_run) == ("x/*", False)
    assert command.resume_hint(arguments, {}) == "; the same command goes on with what is left"
