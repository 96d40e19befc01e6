"""Ranks that are killed, asked to end, or fail: real processes of real runs."""

import argparse
import os
import resource
import shutil
import signal
import sys
from pathlib import Path

import pytest

from gspo.cli.train import configured, take_part
from gspo.config.files import load
from gspo.distributed.environment import LOST, SETTINGS, SHORT, without_ranks
from gspo.launch.launch import Ended, launch, outcome
from gspo.launch.processes import here
from tests.launch.started import apart, begin, completions, finished, ranks_of, steps, wait_for

NO_ROLLOUTS = "--log.rollouts=false", "--log.token_rollouts=0"


def little_room():
    """Files may have 20 kB."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def test_two_ranks_make_the_run_of_one(place, unbroken):
    status, output = finished(begin(place, "single", "--train.steps=6"))
    assert status == 0, output
    assert completions(place, unbroken) == completions(place, "single") and len(completions(place, "single")) == 192
    assert apart(place, "single", unbroken) < 1e-6


def test_nobody_waits_for_a_leader_that_has_found_a_wrong_setting(monkeypatch):
    """It is gone before the others have met it."""
    script = "import os, sys, time; sys.exit(3) if os.environ['RANK'] == '0' else time.sleep(10_000)"

    def start(command, ranks, variables):
        return here([sys.executable, "-c", script], ranks, variables)

    monkeypatch.setattr("gspo.launch.launch.GRACE", 1e6)
    assert launch([], 2, 3, start) == 3


@pytest.mark.parametrize(
    ("restarts", "leader", "follower", "status", "written"),
    [
        (1, LOST, -9, 1, True),
        (0, SHORT, 0, 1, True),
        (3, LOST, 2, 2, True),
        (1, 2, LOST, 2, False),  # it has told of it itself
        (1, 0, 0, 0, False),
    ],
)
def test_a_run_that_does_not_go_on_is_reported_where_its_leader_was_lost(
    tmp_path, restarts, leader, follower, status, written
):
    script = (
        "import os, sys; code = int(sys.argv[1 + int(os.environ['RANK'])]); "
        "os.kill(os.getpid(), 9) if code < 0 else sys.exit(code)"
    )

    def start(command, ranks, variables):
        assert not (tmp_path / "report.html").exists()  # another life begins
        return here([sys.executable, "-c", script, str(leader), str(follower)], ranks, variables)

    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "reward": 0.5}\n{"step": 2, "reward": 0.6}\n')
    (tmp_path / "config.toml").write_text("[train]\nsteps = 6\n")
    assert launch([], 2, restarts, start, folder=tmp_path) == status
    assert (tmp_path / "report.html").exists() == written
    assert not written or "Not finished: 2 of 6 steps." in (tmp_path / "report.html").read_text()


def test_ranks_of_nohup_stay_without_a_terminal():
    """SIGHUP is ignored by the launcher, and by what it starts."""
    script = "import signal, sys; sys.exit(signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN)"

    def start(command, ranks, variables):
        os.kill(os.getpid(), signal.SIGHUP)
        return here([sys.executable, "-c", script], ranks, variables)

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert launch([], 2, 0, start) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_restart_reads_the_settings_as_they_were(tmp_path, monkeypatch):
    """Secrets too, which are in no file: whoever kills the launcher leaves none behind. It needs no folder but its own."""
    monkeypatch.chdir(tmp_path)
    text = "[task]\nconfig = {api_key = 'sk-1', name = 'Zoë'}\n[[stage]]\nat = 2\ntemperature = 0.5\n"
    (tmp_path / "run.toml").write_text(text, encoding="utf-8")
    config = load("run.toml", {"train.steps": "9", "scale.ranks": "2", "log.dir": "runs/mine"})
    lives = []

    def life(command, ranks, variables, *more):
        lives.append((command[4:], variables))
        return Ended(LOST if len(lives) == 1 else 0, "", True)

    monkeypatch.setattr("gspo.launch.launch.run_once", life)
    arguments = argparse.Namespace(config="run.toml", words=["train", "run.toml", "--train.steps", "9"])
    assert take_part(config, arguments) == 0
    assert [words for words, _ in lives] == [arguments.words] * 2
    (tmp_path / "run.toml").write_text("[half")
    monkeypatch.setenv(SETTINGS, lives[1][1][SETTINGS])
    assert configured(arguments, {"train.steps": "9"}) == config
    assert SETTINGS not in without_ranks(os.environ)
    assert [path.name for path in tmp_path.iterdir()] == ["run.toml"]


def test_ranks_meet_at_one_address_alone():
    """Whoever reaches the store can end the run, so it listens for this machine alone unless told otherwise."""
    found = []

    def start(command, ranks, variables):
        found.append(variables["MASTER_ADDR"])
        return here([sys.executable, "-c", ""], ranks, variables)

    assert launch([], 2, 0, start) == launch([], 2, 0, start, "127.0.0.2") == 0
    assert found == ["127.0.0.1", "127.0.0.2"]


def test_files_of_the_folder_stand_in_for_no_library(tmp_path, monkeypatch):
    for name in ("argparse", "numpy", "gspo"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    assert launch(["--version"], 2, 0) == 0


@pytest.mark.slow
def test_a_rank_that_hangs_is_lost_after_the_time_limit(place, unbroken):
    process = begin(place, "hangs", "--scale.ranks=2", "--train.steps=6", "--scale.timeout=10")
    wait_for(lambda: steps(place, "hangs") >= 2, process=process)
    stopped = ranks_of(process)[1]
    os.kill(stopped, signal.SIGSTOP)
    try:
        status, output = finished(process)
    finally:
        os.kill(stopped, signal.SIGCONT) if Path(f"/proc/{stopped}").exists() else None
    assert status == 0 and "rank 0 lost the others: the run goes on" in output, output
    assert completions(place, "hangs") == completions(place, unbroken)


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_ctrl_c_finishes_the_step_and_saves(place, number):
    """So does a scheduler, which tells all processes: the leader hears it twice."""
    name = f"stopped-{number:d}"
    process = begin(place, name, "--scale.ranks=2", "--train.steps=1000", "--train.save_every=500")
    wait_for(lambda: steps(place, name) >= 1, process=process)
    for pid in [process.pid, *(ranks_of(process).values() if number == signal.SIGTERM else ())]:
        os.kill(pid, number)
    status, output = finished(process)
    assert status == 130 and f"{signal.Signals(number).name}: finishing this step, then saving" in output, output
    assert list((place / name / "checkpoints").glob("step_*/state.pt")) and not ranks_of(process)


def test_ranks_end_with_whoever_started_them(place):
    process = begin(place, "orphans", "--scale.ranks=2", "--train.steps=1000", "--train.save_every=500")
    wait_for(lambda: steps(place, "orphans") >= 1, process=process)
    left = ranks_of(process).values()
    process.kill()
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in left))
    assert list((place / "orphans" / "checkpoints").glob("step_*/state.pt"))  # the leader has saved


@pytest.mark.slow
def test_a_rank_that_is_killed_while_it_loads_costs_a_restart(place, unbroken):
    shutil.copy(place / "run.toml", place / "edited.toml")
    process = begin(place, "loading", "--scale.ranks=2", "--train.steps=6", settings="edited.toml")
    wait_for(lambda: len(ranks_of(process)) == 2, process=process)
    (place / "edited.toml").write_text("settings of the next run, [half written")
    os.kill(ranks_of(process)[1], signal.SIGKILL)
    status, output = finished(process)
    assert status == 0 and "rank 1 was ended by SIGKILL" in output, output
    assert completions(place, "loading") == completions(place, unbroken)


@pytest.mark.slow
def test_a_restart_resumes_no_run_of_another_command(place, unbroken):
    before = (place / unbroken / "metrics.jsonl").read_bytes()
    process = begin(place, "taken", "--scale.ranks=2", "--train.steps=9")
    wait_for(lambda: len(ranks_of(process)) == 2, process=process)
    shutil.copytree(place / unbroken, place / "taken")  # the launcher has found it free
    os.kill(ranks_of(process)[1], signal.SIGKILL)
    status, output = finished(process)
    assert status == 2 and "the folder exists and is not empty" in output, output
    assert (place / "taken" / "metrics.jsonl").read_bytes() == before


@pytest.mark.parametrize("begun", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_run_that_was_asked_to_end_is_not_started_again(place, begun):
    name = f"asked-{begun}"
    process = begin(place, name, "--scale.ranks=2", "--train.steps=1000")
    wait_for(lambda: len(ranks_of(process)) == 2, process=process)
    if begun:  # its samplers are made after its folder is claimed, before it listens to signals
        wait_for(lambda: (place / name / "config.toml").exists())
    process.send_signal(signal.SIGTERM)
    status, output = finished(process)
    assert status == 130 and "restart" not in output, output
    assert not ranks_of(process)


@pytest.mark.slow
def test_a_full_disk_ends_no_run_and_hangs_no_rank(place):
    process = begin(
        place, "full", "--scale.ranks=2", "--train.steps=3", "--train.save_every=2", *NO_ROLLOUTS, preexec_fn=little_room
    )
    status, output = finished(process)
    assert status == 1 and "could not be written" in output and "goes on without this checkpoint" in output, output
    assert steps(place, "full") == 3 and "restart" not in output


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--reward.functions=letters:fails"], "the grader's disk is full"),
        (["--scale.expert_parallel=3"], "scale.expert_parallel = 3"),
    ],
)
def test_an_error_of_its_own_ends_a_run_once(place, arguments, message):
    name = f"failed{message.partition(' ')[0].replace('/', '-')}"
    status, output = finished(begin(place, name, "--scale.ranks=2", "--train.steps=3", *arguments))
    assert status in (1, 2) and message in output and "restart" not in output, output
    assert output.count("gspo: error") == 1, output


def test_what_the_ends_of_all_ranks_mean():
    assert outcome([0, 0]) == (0, "") and outcome([130, 0]) == (130, "")
    assert outcome([2, LOST]) == outcome([LOST, 2]) == (2, "")
    assert outcome([LOST, -9]) == (LOST, "rank 1 was ended by SIGKILL")
    assert outcome([LOST, None]) == (LOST, "rank 0 lost the others")
    assert outcome([0, None]) == outcome([0, -6]) == outcome([0, LOST]) == (0, "")
    assert outcome([None, 0])[0] == LOST
