"""What a command shows of the log, at each level."""

import logging
import warnings

import pytest

from gspo.cli.terminal import level_of, terminal_log
from gspo.launch.processes import importing
from gspo.runs.progress import Progress


@pytest.mark.parametrize(
    ("option", "shown"),
    [("--quiet", ["warning: d"]), ("--resume", ["c", "warning: d"]), ("--verbose", ["debug: b", "c", "warning: d"])],
)
def test_a_line_for_each_record_of_the_level(capsys, option, shown):
    logger = logging.getLogger("gspo.some.module")
    with terminal_log(level_of(["train", option])):
        for level, text in ((5, "a"), (10, "b"), (20, "c"), (30, "d")):
            logger.log(level, text)
        with Progress(1) as progress:
            progress.step({"step": 1})
    logger.warning("later")
    printed = capsys.readouterr()
    assert printed.err == "".join(f"gspo: {line}\n" for line in shown)
    assert printed.out == ("" if option == "--quiet" else "step 1/1\n")


def test_other_libraries_are_named_and_their_infos_are_not_shown(capsys):
    with terminal_log(logging.INFO):
        logging.getLogger("theirs").info("nothing")
        logging.getLogger("theirs.part").warning("look at http://me:word@host \x1b[2J")
        warnings.warn("old", UserWarning, stacklevel=1)
    first, second, *_ = capsys.readouterr().err.splitlines()
    assert first == "gspo: warning: theirs.part: look at http://<hidden>@host \\x1b[2J"
    assert second.startswith("gspo: warning: py.warnings: ") and second.endswith("UserWarning: old")


def test_a_warning_of_the_hub_is_shown_once(capsys):
    hub = logging.getLogger("huggingface_hub")
    hub.addHandler(logging.StreamHandler())
    with terminal_log(logging.INFO):
        with importing():
            pass
        logging.getLogger("huggingface_hub.file_download").warning("slow")
    lines = [line for line in capsys.readouterr().err.splitlines() if "slow" in line]
    assert lines == ["gspo: warning: huggingface_hub.file_download: slow"]
