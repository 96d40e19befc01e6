"""Runs of `gspo` on ranks, as processes of their own, in a folder with all that they need."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from safetensors.torch import load_file

from tests import tiny_run
from tests.patience import PATIENCE

NAMED = "rank {}"  # a process that faulty.py has forked
FORKED = (None,)  # no fault, and ranks that are forked: they begin seconds earlier
ROOT = Path(__file__).parents[2]
SETTINGS = """
[model]
path = "{model}"
[task]
source = "{rows}"
[reward]
functions = ["letters:likes_a"]
[rollout]
num_prompts = 8
num_generations = 4
max_completion_length = 8
[algorithm]
mini_batches = 2
[optimizer]
lr = 3e-3
eps = 1e-3  # less would divide rounding by rounding, where a gradient is next to nothing
[train]
save_every = 2
seed = 1
[eval]
num_prompts = 0
"""
REWARD = """
import time

def likes_a(prompts, completions, **columns):
    return [c.count("a") / max(1, len(c)) for c in completions]

def fails(prompts, completions, **columns):
    raise OSError("the grader's disk is full")
"""


def fill(folder):
    """A model, rows, a reward and the settings of a run."""
    tiny_run.model(tie_word_embeddings=False).save(folder / "model")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in tiny_run.ROWS))
    (folder / "letters.py").write_text(REWARD)
    (folder / "run.toml").write_text(SETTINGS.format(model=folder / "model", rows=folder / "rows.jsonl"))
    return folder


def begin(place, name, *arguments, command="train", settings="run.toml", faults=(), torchrun=(), **options):
    """Starts it. faults: one for each life of the run (faulty.py). torchrun: its options, where it starts the ranks."""
    if faults:
        (place / f"{name}-tmp").mkdir(exist_ok=True)
        path = os.pathsep.join([str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
        own = {"FAULTS": json.dumps([*faults]), "PYTHONPATH": path, "TMPDIR": str(place / f"{name}-tmp")}
        options["env"] = os.environ | own | options.pop("env", {})
    starter = [sys.executable, *(["-m", "torch.distributed.run", *torchrun] if torchrun else [])]
    words = [*starter, "-m", "tests.launch.faulty" if faults else "gspo", command, settings]
    words += [] if command == "eval" else [f"--log.dir={name}"]  # which has no folder
    return subprocess.Popen(
        [*words, *arguments], cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
    )


def finished(process):
    """Exit status and output."""
    try:
        output = process.communicate(timeout=PATIENCE)[0]
        return process.returncode, output
    finally:
        process.kill()


def variables_of(pid):
    """The environment of a process."""
    return dict(each.partition("=")[::2] for each in Path(f"/proc/{pid}/environ").read_text().split("\0"))


def processes():
    """The parent of each process."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            found[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    return found


def ranks_of(process):
    """The ranks that a launcher has started, by number."""
    found = {}
    for pid, parent in processes().items():
        try:
            if parent == process.pid:
                name, variables = Path(f"/proc/{pid}/comm").read_text(), variables_of(pid)
                number = name.removeprefix(NAMED.format("")) if name.startswith(NAMED.format("")) else variables.get("RANK")
                found |= {} if number is None else {int(number): pid}
        except OSError:
            continue
    return found


def left(name, value):
    """The processes that have this variable in their environment."""
    found = []
    for pid in processes():
        try:
            if variables_of(pid).get(name) == value:
                found.append(pid)
        except OSError:
            continue
    return found


def steps(place, name):
    file = place / name / "metrics.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


def stopped(process):
    """Kills it and all that it has started, each with its group if it leads one. Its output."""
    parents, found = processes(), [process.pid]
    for each in found:
        found += [pid for pid, parent in parents.items() if parent == each]
    for pid in found:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL) if os.getpgid(pid) == pid else kill(pid)
    return finished(process)[1]


def wait_for(what, seconds=PATIENCE, process=None):
    """process: where it ends before, its output says why. It is stopped, and says why too, where nothing happens."""
    end = time.monotonic() + seconds
    while not what():
        assert process is None or process.poll() is None or what(), finished(process)[1]
        assert time.monotonic() < end, f"nothing happened{f': {stopped(process)}' if process else ''}"
        time.sleep(0.02)


def weights(place, name):
    return {key: x for file in (place / name / "model").glob("*.safetensors") for key, x in load_file(file).items()}


def apart(place, name, other):
    """How far the weights of two runs are from each other."""
    ours, theirs = weights(place, name), weights(place, other)
    assert ours.keys() == theirs.keys()
    return max(float((ours[key] - theirs[key]).abs().max()) for key in theirs)


def completions(place, name):
    lines = (place / name / "rollouts.jsonl").read_text().splitlines()
    return [(row["step"], row["completion"]) for row in map(json.loads, lines)]


def kill(pid):
    os.kill(pid, signal.SIGKILL)
