"""Runs each documented command with only what the README installs, then with the extra that it names.

Without its extra a command must be refused in a line that names it, and with the extra it must work. Each environment has
nothing else on top of `pip install -e '.[tasks]'`. Prints a table; exits with 1 if a row is wrong.
"""

import argparse
import os
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = "tasks"
"""The extra of the README's install."""
UNPINNED = {"trackers", "verifiers"}
"""Extras that want other versions than constraints.txt, as the Makefile says."""
TRAIN = "train run.toml --log.dir={dir}"
ROWS = [  # an extra, a command, and what it says in the end if nothing that it could reach is here
    (README, "config run.toml", ""),
    (README, "plan run.toml", ""),
    (README, "train run.toml", ""),
    (README, f"{TRAIN} --scale.ranks=2", ""),
    (README, f"{TRAIN} --task.source=reasoning_gym:count_bits --reward.functions=task", ""),
    (README, f"{TRAIN} --task.source=rows.parquet", ""),
    (README, f"{TRAIN} --model.path=model.gguf", ""),
    (README, "sft sft.toml", ""),
    (README, "eval run.toml --model.path=run/model", ""),
    (README, "eval run/model --benchmark=rows.jsonl --eval.max_completion_length=4", ""),
    (README, "compare study.toml --dir=study", ""),
    (README, "report run", ""),
    (README, "export run --out=whole", ""),
    ("lora", "train run.toml --log.dir=adapted --lora.rank=4", ""),
    ("lora", "export adapted --merge --out=merged", ""),
    ("quantized", f"{TRAIN} --lora.rank=4 --model.quantize=nf4 --optimizer.name=adamw_8bit", ""),
    ("agents", "serve serve.toml", ""),
    ("agents", "eval m --benchmark=rows.jsonl --url=http://127.0.0.1:9", "cannot be reached"),
    ("vllm", f"{TRAIN} --sampler.engine=vllm --sampler.urls=http://127.0.0.1:9", "nothing answers"),
    ("benchmarks", "eval run/model --benchmark=humaneval --eval.max_completion_length=1", ""),
    ("ray", f"{TRAIN} --scale.launcher=ray --scale.ranks=2", ""),
    ("trackers", f"{TRAIN} --log.trackers=tensorboard,wandb,trackio", ""),
    ("verifiers", "eval run.toml --task.source=verifiers:no-such --reward.functions=task", "no-such"),
]
FILES = {
    "run.toml": """model.path = "model"
task.source = "rows.jsonl"
reward.functions = ["exact"]
rollout = {num_prompts = 4, num_generations = 2, max_completion_length = 4}
algorithm.mini_batches = 1
train.steps = 1
eval.num_prompts = 2
log.dir = "run"
""",
    "sft.toml": 'model.path = "model"\ntask.source = "rows.jsonl"\ntrain = {steps = 1, batch_size = 4}\nlog.dir = "sft"\n',
    "serve.toml": 'model.path = "model"\nlog.dir = "served"\n',
    "study.toml": 'base = "run.toml"\nseeds = [0]\n[variants.gspo]\n[variants.grpo.algorithm]\nname = "grpo"\n',
}
MAKE = """
import json
import pyarrow
from pyarrow import parquet
from tests.backends.hf.test_gguf import llama, write
from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer, tiny_qwen3_moe
from tests.tiny_run import ROWS
rows = [row | {"completion": row["answer"]} for row in ROWS]
open(f"{folder}/rows.jsonl", "w").writelines(json.dumps(row) + "\\n" for row in rows)
parquet.write_table(pyarrow.Table.from_pylist(rows), f"{folder}/rows.parquet")
small = {"hidden": 32, "layers": 2, "experts": 4, "expert_width": 32, "heads": 2, "kv_heads": 1, "context": 4096}
tokenizer = longest_match_tokenizer([*map(chr, range(32, 127)), *"\\n≤➞"])
build_tiny(tiny_qwen3_moe(**small, tie_word_embeddings=False), tokenizer, 0).save(f"{folder}/model")
write(f"{folder}/model.gguf", llama())
"""


def environment(folder, extra, below=None):
    """Makes an environment with gspo and an extra, on top of `below` if given. Returns its interpreter."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    python = folder / "bin" / "python"
    if below is not None:
        site = "import sysconfig; print(sysconfig.get_path('purelib'))"
        here, there = (subprocess.check_output([each, "-c", site], text=True).strip() for each in (python, below))
        Path(here, "below.pth").write_text(f"import site; site.addsitedir({there!r})\n")
    pins = [] if extra in UNPINNED else ["-c", str(ROOT / "constraints.txt")]
    words = ["pip", "--disable-pip-version-check", "install", "-q", "--no-compile", *pins, "-e", f"{ROOT}[{extra}]"]
    subprocess.run([python, "-m", *words], check=True)
    return python


def run(python, command, folder):
    """The exit status, the output and the processor seconds of a command; `gspo serve` is interrupted once it serves."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    variables = os.environ | {"WANDB_MODE": "offline", "OPENAI_API_KEY": "none", "XDG_CACHE_HOME": str(folder / "cache")}
    words = [python, "-m", "gspo", *shlex.split(command)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(words, cwd=folder, env=variables, **pipes) as process:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("export OPENAI_API_KEY"):
                process.send_signal(signal.SIGINT)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return process.returncode, "".join(lines), after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def tried(rows, folder):
    """Yields the extra and the command of each row, its two results with their processor seconds, and what is wrong."""
    base = environment(folder / "base", README)
    for name, text in FILES.items():
        (folder / name).write_text(text)
    subprocess.run([sys.executable, "-c", f"folder = {str(folder)!r}{MAKE}"], cwd=ROOT, check=True)
    pythons = {README: base}
    for number, (extra, command, end) in enumerate(rows):
        command, refused, wrong, first = command.format(dir=f"run-{number}"), "", "", 0.0
        if extra != README:
            status, output, first = run(base, command, folder)
            refused = "refused" if status == 2 and f"gspo[{extra}]" in output else f"ended with {status}"
            wrong += "" if refused == "refused" else output
            pythons[extra] = pythons.get(extra) or environment(folder / extra, extra, base)
        status, output, second = run(pythons[extra], command, folder)
        works = end in output and "pip install" not in output if end else status == 0
        wrong += "" if works else output
        yield extra, command, refused, first, "works" if works else f"ended with {status}", second, wrong


def main():
    """Prints the table. Returns the exit status."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--extras", nargs="*", help="only the rows of these extras")
    chosen = parser.parse_args().extras
    faults = []
    with tempfile.TemporaryDirectory(prefix="gspo-needs-") as scratch:
        print("| extra | command | without it | s | with it | s |\n|---|---|---|---|---|---|")
        for extra, command, refused, first, works, second, wrong in tried(
            [row for row in ROWS if not chosen or row[0] in chosen], Path(scratch)
        ):
            print(f"| {extra} | `gspo {command}` | {refused} | {first:.1f} | {works} | {second:.1f} |", flush=True)
            faults += [f"gspo {command}:\n{wrong}"] if wrong else []
    print(*faults, sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
