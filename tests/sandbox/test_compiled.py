"""Hostile C++ gets nothing from the compiler, out of the sandbox, or for the next test."""

import dataclasses

import pytest

from gspo.sandbox.types import Case, Limits, Program
from tests.sandbox.boxes import compiler, in_time
from tests.sandbox.compiled import CONTAIN, EXHAUST, SPEND, SURVIVE

TOKEN, INPUT = "gspo-attack-token-5151", "what another test is given"
TIGHT = Limits(seconds=0.5, memory=1 << 28, output=100_000, threads=16, compile_seconds=1.0)
HEAD = "".join(f"#include <{name}>\n" for name in ("csignal", "cstdio", "cstdlib", "cstring", "sys/stat.h", "unistd.h"))
pytestmark = compiler


@pytest.fixture(scope="module")
def secret(folder_of_all):
    """A file that anybody may read."""
    (folder_of_all / "secret").write_text(f"{TOKEN}\n")
    (folder_of_all / "secret").chmod(0o644)
    return str(folder_of_all / "secret")


@pytest.mark.parametrize("name", CONTAIN)
def test_no_attempt_succeeds(box, secret, name):
    """It gets nothing of the file, of the input of the next test, of the host."""
    source = CONTAIN[name].replace("{secret}", secret)
    outcome, _ = box.run(Program(source, "cpp"), [Case(""), Case(INPUT)], Limits(seconds=8.0, memory=1 << 28))
    text = outcome.stdout + outcome.detail
    assert [word for word in (TOKEN, INPUT, "root:", "BREACH") if word in text] == [], outcome
    assert outcome.status in ("ok", "error", "compile"), outcome


@pytest.mark.parametrize("name", EXHAUST)
def test_the_compiler_uses_up_nothing(box, name):
    (outcome,) = box.run(Program(EXHAUST[name], "cpp"), [Case("")], TIGHT)
    assert outcome.status == "compile", outcome
    assert len(outcome.detail) < 10_000


@pytest.mark.parametrize("name", SPEND)
def test_a_program_uses_up_nothing(box, name):
    source, words = SPEND[name]
    limits = dataclasses.replace(in_time(TIGHT, words), compile_seconds=30.0)  # the program's are tried, not g++'s
    (outcome,) = box.run(Program(source, "cpp"), [Case("")], limits)
    assert outcome.status in words.split("|"), outcome


@pytest.mark.parametrize("name", SURVIVE)
def test_the_next_test_is_run_as_ever(box, name):
    body = f'if (strncmp(s, "attack", 6) == 0) {{ {SURVIVE[name]} }} else puts("well");'
    source = f"{HEAD}int main() {{ char s[9]; fgets(s, 9, stdin); {body} }}"
    limits = in_time(Limits(seconds=0.5), "timeout" if "SIGSTOP" in source else "")
    outcomes = box.run(Program(source, "cpp"), [Case(text) for text in ("attack", "x", "attack", "x")], limits)
    assert [(outcome.status, outcome.stdout) for outcome in outcomes[1::2]] == [("ok", "well\n")] * 2, outcomes
