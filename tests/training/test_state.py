"""Checkpoints of a run: what is killed, stopped or short of disk goes on as if nothing had happened."""

import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest
import torch

from gspo.assembly import assemble
from gspo.config.files import load
from gspo.config.names import RESUME
from gspo.runs import checkpoint, disk
from tests.campaign import CAMPAIGN
from tests.runs.events import texts
from tests.tiny_run import likes_a, model
from tests.training.whole import lines, numbers, train


@pytest.mark.parametrize(
    "changes",
    [{}, {"algorithm": {"beta": 0.05}}, {"algorithm": {"beta": 0.05}, "lora": {"rank": 4}},
     {"lora": {"rank": 4, "targets": ["all-linear", "experts"]}}],
    ids=str,
)  # fmt: skip
def test_resume_is_bit_equal(tmp_path, changes):
    schedule = {"schedule": "cosine", "warmup": 3}
    folder = train(tmp_path / "run", optimizer=schedule, **changes).folder
    whole, rollouts = numbers(folder), (folder / "rollouts.jsonl").read_text()
    (folder / "checkpoints" / "step_000006").rename(tmp_path / "gone")  # go on from step 4
    assert checkpoint.latest(folder / "checkpoints").name == "step_000004"
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"step": 5, "half a li')
    train(folder, resume=True, optimizer=schedule, **changes)
    assert numbers(folder) == whole
    assert (folder / "rollouts.jsonl").read_text() == rollouts


def likes_a_in_few(prompts, completions, **columns):
    """Most groups get the same reward, so that many updates read nothing, and some steps do not either."""
    return [r if prompt.startswith(("1", "5")) else 0.0 for prompt, r in zip(prompts, likes_a(prompts, completions))]


def test_resume_is_bit_equal_through_updates_that_read_nothing(tmp_path):
    changes = {
        "rollout": {"num_prompts": 2}, "algorithm": {"mini_batches": 2, "epsilon": "auto"}, "train": {"steps": 8},
        "optimizer": {"weight_decay": 0.1},
    }  # fmt: skip
    folder = train(tmp_path / "run", reward=likes_a_in_few, **changes).folder
    whole = numbers(folder)
    (folder / "checkpoints" / "step_000008").rename(tmp_path / "gone")
    (folder / "checkpoints" / "step_000006").rename(tmp_path / "gone too")
    train(folder, resume=True, reward=likes_a_in_few, **changes)
    assert numbers(folder) == whole
    read = [line["no_signal/completions"] for line in whole[1:]]
    assert 1 in read[:4] and 1 in read[4:] and min(read) < 1
    for line, idle in zip(whole[1:], read):
        missing = [name for name, value in line.items() if value is None and not name.startswith("clip_ratio/")]
        assert (line["entropy"] is None) == (line["ratio/noise_floor"] is None) == (idle == 1) == bool(missing)
        assert line["updates"] == 2 and (line["grad_norm"] == 0) == (idle == 1)
    assert (folder / "report.html").stat().st_size > 10_000


def test_no_model_that_was_trained_meanwhile_becomes_the_reference(tmp_path):
    tiny, changes = model(), {"algorithm": {"beta": 0.05}}
    train(tmp_path / "run", tiny=tiny, train={"steps": 2}, **changes)
    with pytest.raises(ValueError, match=r"algorithm.beta = 0.05: the reference is the model that training began with, and"):
        train(tmp_path / "run", resume=True, tiny=tiny, train={"steps": 3}, **changes)


def test_offloading_changes_no_number_and_may_begin_at_a_resume(tmp_path, monkeypatch):
    changes = {"algorithm": {"beta": 0.05}}
    away = {"offload_reference": True, "offload_optimizer": True}
    folder = train(tmp_path / "run", **changes).folder
    plain = numbers(folder)
    (folder / "checkpoints" / "step_000006").rename(tmp_path / "gone")
    with pytest.raises(ValueError, match=r"train\.offload_optimizer = True and .*: on a CPU there is nowhere"):
        train(tmp_path / "away", train=away, **changes)
    monkeypatch.setattr(assemble, "check_offload", lambda config: None)
    train(folder, resume=True, train=away, **changes)
    assert numbers(folder) == plain
    assert numbers(train(tmp_path / "away", train=away, **changes).folder) == plain


def test_other_threads_than_before_are_warned_of(tmp_path):
    train(tmp_path / "run", train={"steps": 1})
    now = torch.get_num_threads()
    torch.set_num_threads(now + 1)
    try:
        train(tmp_path / "run", resume=True, train={"steps": 2})
        train(tmp_path / "run", resume=True, train={"steps": 3})
    finally:
        torch.set_num_threads(now)
    (text,) = [text for text in texts(tmp_path / "run") if text.startswith("torch had")]
    assert text.startswith(f"torch had {now} threads before and has {now + 1} now") and f"OMP_NUM_THREADS={now}" in text


def test_a_run_that_had_ended_says_so(tmp_path):
    """Only where nothing is left to train, and its numbers stay."""
    train(tmp_path / "run", train={"steps": 2})
    assert "done already" not in str(texts(tmp_path / "run"))
    before = numbers(tmp_path / "run")
    assert train(tmp_path / "run", resume=True, train={"steps": 2}).finished
    assert texts(tmp_path / "run")[-1] == "all 2 steps are done already: nothing is trained; raise train.steps to go on"
    assert numbers(tmp_path / "run") == before


def test_a_failed_resume_leaves_no_page_of_success(tmp_path):
    folder, calls = tmp_path / "run", []
    train(folder, train={"steps": 2})
    assert "Failed" not in (folder / "report.html").read_text()

    def fails_later(prompts, completions, **columns):
        calls.append(1)
        if len(calls) > 2:
            raise OSError("the disk is full")
        return [0.0] * len(completions)

    with pytest.raises(RuntimeError, match="the disk is full"):
        train(folder, resume=True, train={"steps": 9}, reward=fails_later)
    page = (folder / "report.html").read_text()
    assert "of 9 steps" in page and "Failed after" in page and "the disk is full" in page


def test_no_file_of_a_checkpoint_goes_unverified(tmp_path):
    folder = train(tmp_path / "run", train={"steps": 1}).folder
    (saved,) = checkpoint.steps(folder / "checkpoints")
    whole = (saved / disk.SUMS).read_text()
    assert whole.count("\n") > 5
    for line in whole.splitlines(keepends=True):
        (saved / disk.SUMS).write_text(whole.replace(line, ""))
        assert f"is not in {disk.SUMS}" in disk.damage(saved), line


def test_the_learning_rate_changes_on_purpose_and_that_is_written_down(tmp_path):
    plain = numbers(train(tmp_path / "plain").folder)
    lower = {"resume": True, "optimizer": {"lr": 1e-3}, "allow": ["optimizer.lr"]}
    folder = train(tmp_path / "run", train={"steps": 3, "save_every": 3}).folder
    train(folder, train={"steps": 5, "save_every": 3}, **lower)
    steps = numbers(folder)
    assert [line["lr"] for line in steps if "lr" in line] == [3e-3] * 3 + [1e-3] * 2
    assert steps[:4] == plain[:4] and steps[4]["reward"] == plain[4]["reward"] and steps[5] != plain[5]
    assert load(folder / "config.toml").optimizer.lr == 1e-3
    change = "goes on with optimizer.lr = 0.001 (was 0.003)"

    def said():
        return [(line["step"], line["text"]) for line in lines(folder / "events.jsonl") if "optimizer.lr" in line["text"]]

    assert said() == [(3, change)]
    (folder / "checkpoints" / "step_000005").rename(tmp_path / "gone")  # as after a kill before it was saved
    with pytest.raises(ValueError, match=r"optimizer\.lr = 0\.001 cannot be changed"):
        train(folder, **lower | {"allow": []})
    train(folder, train={"steps": 5, "save_every": 3}, **lower)
    assert numbers(folder) == steps and said() == [(3, change)]
    train(folder, **lower | {"allow": []})  # from here on the run has had it
    assert numbers(folder)[-1]["lr"] == 1e-3 and said() == [(3, change)]


def test_an_automatic_learning_rate_is_told_and_a_resumed_run_takes_the_same(tmp_path):
    auto = {"optimizer": {"lr": "auto"}, "eval": {"every": 0}}
    whole = train(tmp_path / "whole", train={"steps": 2}, **auto).folder
    folder = train(tmp_path / "run", train={"steps": 1}, **auto).folder
    train(folder, resume=True, train={"steps": 2}, **auto)
    assert numbers(folder) == numbers(whole) and [line["lr"] for line in numbers(whole)] == [1e-5] * 2
    assert load(folder / "config.toml").optimizer.lr == "auto"
    told = [text for text in texts(whole) if "optimizer.lr" in text]
    assert told == ['optimizer.lr = "auto" is 1e-05 in this run: for a model of 0.0318 million parameters']
    with pytest.raises(ValueError, match=r"optimizer\.lr = 1e-05 cannot be changed .* began with 'auto'"):
        train(folder, resume=True, **auto | {"optimizer": {"lr": 1e-5}})


def test_allow_needs_a_resume(tmp_path):
    with pytest.raises(ValueError, match=r"^allow = 'optimizer\.lr': has no effect without --resume \(from Python: "):
        train(tmp_path / "run", allow=["optimizer.lr"])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("evaluates", [0, 3])
def test_ctrl_c_before_the_first_step_says_what_works(tmp_path, evaluates):
    def interrupts(prompts, completions, **columns):
        os.kill(main, signal.SIGINT)
        return [0.0] * len(completions)

    main, changes = os.getpid(), {"eval": {"every": evaluates}, "train": {"steps": 2}}
    assert not train(tmp_path / "run", reward=interrupts, **changes).finished
    done = f"after step 1 of 2; {RESUME} goes on from the last checkpoint, step_000001"
    if evaluates:  # it came in the evaluation before training
        done = f"before the first step was done; no checkpoint was saved yet: {RESUME} begins with the first step"
    assert texts(tmp_path / "run")[-1] == f"stopped {done}"
    again = train(tmp_path / "run", resume=True, **changes)
    assert again.finished and again.metrics["step"] == 2


def run_in_a_process(folder, resume, output):
    """A whole run, told to the file `output`."""
    for stream in (sys.stdout, sys.stderr):
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream.fileno())
    torch.set_num_threads(1)
    train(folder, resume, train={"steps": STEPS, "save_every": 3})


def start(folder, resume=False):
    """A process of its own, and where it writes."""
    output = folder.with_suffix(".out")
    output.unlink(missing_ok=True)
    return begun(run_in_a_process, folder, resume, output), output


def begun(work, *arguments):
    """A process that does it, forked off one that has loaded the libraries and nothing else."""
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload([__name__])
    process = processes.Process(target=work, args=arguments)
    process.start()
    return process


def wait_for(path, mark, count, process):
    """Until the file `path` holds the mark so many times, or the process has ended."""
    while process.is_alive() and not (path.exists() and path.read_text().count(mark) >= count):
        time.sleep(0.01)


KILLS = range(2, 90, 4) if CAMPAIGN else (2, 6)  # after so many lines of metrics, and a moment
STEPS = KILLS[-1] + 24  # far from done after the last one's moment


def test_kill_9_at_random_points_and_ctrl_c_lose_nothing(tmp_path):
    whole, folder, rng = tmp_path / "whole", tmp_path / "killed", random.Random(0)
    reference, _ = start(whole)
    resume = False
    for count in KILLS:
        process, output = start(folder, resume)
        wait_for(folder / "metrics.jsonl", "\n", count, process)
        time.sleep(rng.random() * 0.3)
        process.kill()
        process.join()
        resume = (folder / "config.toml").exists()
    process, output = start(folder, resume)
    wait_for(output, "\nstep ", 1, process)
    os.kill(process.pid, signal.SIGINT)
    process.join()
    assert process.exitcode == 0, output.read_text()
    noted = " ".join(texts(folder))
    assert "SIGINT: finishing this step, then saving" in noted
    assert "--resume (from Python: resume=True) goes on from the last checkpoint, step_" in noted
    process, output = start(folder, True)
    process.join()
    assert process.exitcode == 0, output.read_text()
    reference.join()
    assert reference.exitcode == 0
    assert [m["step"] for m in numbers(folder)] == list(range(STEPS + 1))
    assert numbers(folder) == numbers(whole)


def run_on_a_terminal(folder, terminal):
    """A run of 500 steps as the leader of the session that has this terminal."""
    os.setsid()
    file = os.open(terminal, os.O_RDWR)  # the first that it opens becomes its own
    assert os.tcgetpgrp(file) == os.getpgrp()
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        os.dup2(file, stream.fileno())
    os.close(file)
    torch.set_num_threads(1)
    train(folder, train={"steps": 500, "save_every": 500})


def test_a_closed_terminal_saves(tmp_path):
    """The kernel's own signal, sent when a terminal is closed, to the session that has it."""
    terminal, other = os.openpty()
    process = begun(run_on_a_terminal, tmp_path / "run", os.ttyname(other))
    try:
        shown = b""
        while b"sampling" not in shown and b"step 1" not in shown:
            shown += os.read(terminal, 4096)
        while not (tmp_path / "run" / "metrics.jsonl").read_text().count("\n"):
            os.read(terminal, 4096)
        os.close(other)
        os.close(terminal)
        process.join()
        assert process.exitcode == 0
    finally:
        process.kill()
    (saved,) = checkpoint.steps(tmp_path / "run" / "checkpoints")
    assert numbers(tmp_path / "run")[-1]["step"] == checkpoint.load_state(saved)["step"] < 500


def test_a_full_disk_at_a_checkpoint(tmp_path, monkeypatch):
    """One in the middle is warned of and tried again; at the end the run says so, and loses only what it must."""
    plain, full = torch.save, {2}

    def save(state, path):
        if state.get("step") in full:  # the learner's part is written before
            Path(path).write_bytes(b"half")
            raise OSError(28, "No space left on device")
        plain(state, path)

    monkeypatch.setattr(torch, "save", save)
    options = {"train": {"steps": 6, "save_every": 2}}
    folder = train(tmp_path / "run", **options).folder
    assert any("step_000002 could not be written" in text and "No space left" in text for text in texts(folder))
    assert [path.name for path in sorted((folder / "checkpoints").iterdir())] == ["good", "step_000004", "step_000006"]
    full |= {4, 6}
    with pytest.raises(RuntimeError, match=r"step_000006 could not be written .*No space left.*GiB are free"):
        train(tmp_path / "late", **options)
    assert not list((tmp_path / "late" / "checkpoints").iterdir())
    assert [line["step"] for line in lines(tmp_path / "late" / "metrics.jsonl")] == list(range(7))


def test_the_checkpoint_of_the_best_evaluation_is_kept(tmp_path):
    """Held-out completions are four at a time, and their rewards as given here, by evaluation."""
    scores = [0.1, 0.5, 0.9, 0.3]

    def reward(prompts, completions, **columns):
        return [scores.pop(0)] * 4 if len(prompts) == 4 else likes_a(prompts, completions)

    def run(folder, steps, resume=False):
        changes = {"steps": steps, "save_every": 9, "keep_checkpoints": 1, "keep_best": True}
        train(folder, resume, reward=reward, train=changes, eval={"every": 1})
        return {path.name for path in (folder / "checkpoints").iterdir()}

    folder, mark = tmp_path / "run", tmp_path / "run/checkpoints/best"
    assert run(folder, 3) == {"best", "good", "step_000002", "step_000003"} and mark.read_text() == "step_000002\n"
    shutil.rmtree(folder / "checkpoints/step_000003")
    mark.unlink()  # as a kill between the two leaves it
    scores[:] = [0.9, 0.2]
    assert (
        run(folder, 4, resume=True) == {"best", "good", "step_000002", "step_000004"} and mark.read_text() == "step_000002\n"
    )
    scores[:] = [0.5, 0.5, 0.4]  # never better than before the first step
    assert run(tmp_path / "other", 2) == {"good", "step_000002"}
