"""Memory that a whole run takes, against what `gspo plan` foretells, on a model with random weights.

    python lab/speed/memory.py [--only NAME ...]

Each run is a process of its own, on a CPU. whole: its memory at its fullest, read every ms, less what the same run takes
with a model of next to nothing. Among it are pages of the file of weights that nobody reads any more, once weights were
packed or put together; the system takes them back when it needs them. needed: what is in no file, and the weights that lie
in one and are read to the end. On a GPU (tests/gpu) both are what torch's allocator had given out at the fullest.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PIECES = [*"abcdefghijklmnopqrstuvwxyz0123456789+-=?. "]
DENSE = {"model_type": "qwen3", "intermediate_size": 1536}
COMMON = {"hidden": 512, "layers": 6, "heads": 8, "kv_heads": 4, "context": 2048, "vocab_size": 8000}
MIXTURE = {"experts": 16, "top_k": 2, "expert_width": 256}
PROMPT, COMPLETION = 208, 48
LORA = {"rank": 16}
EVERY = {"rank": 16, "targets": ["all-linear", "experts"]}
BF16 = {"model": {"dtype": "bfloat16"}}
NOTHING = "next to nothing"
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    NOTHING: (DENSE | {"hidden": 16, "layers": 1, "heads": 2, "kv_heads": 1, "intermediate_size": 16, "vocab_size": 64}, {}),
    "all weights": (DENSE, {}),
    "all weights, checkpointing": (DENSE, {"train": {"gradient_checkpointing": True}}),
    "all weights, autocast": (DENSE, {"model": {"autocast": "bfloat16"}}),
    "all weights, KL": (DENSE, {"algorithm": {"beta": 0.01}}),
    "all weights, 8-bit moments": (DENSE, {"optimizer": {"name": "adamw_8bit"}}),
    "bfloat16": (DENSE, BF16),
    "adapters": (DENSE, {"lora": LORA}),
    "adapters, bfloat16": (DENSE, BF16 | {"lora": LORA}),
    "adapters, nf4": (DENSE, {"lora": LORA, "model": {"quantize": "nf4"}}),
    "adapters, int8": (DENSE, {"lora": LORA, "model": {"quantize": "int8"}}),
    "mixture": (MIXTURE, {}),
    "mixture, adapters": (MIXTURE, {"lora": EVERY}),
    "mixture, adapters, nf4": (MIXTURE, {"lora": EVERY, "model": {"quantize": "nf4"}}),
}


def settings(name: str, folder: Path, device: str) -> dict[str, Any]:
    """Of a run of two steps."""
    made: dict[str, Any] = {
        "model": {"path": str(folder / "model"), "device": device},
        "rollout": {"num_prompts": 4, "num_generations": 4, "max_completion_length": COMPLETION},
        "train": {"steps": 2, "micro_batch_tokens": 16 * (PROMPT + COMPLETION), "layout": "padded"},
        "eval": {"num_prompts": 0}, "log": {"dir": str(folder / "runs")},
    }  # fmt: skip
    for section, table in CASES[name][1].items():
        made[section] = made.get(section, {}) | table
    return made


def taken(process: int) -> tuple[int, int]:
    """Bytes of a process, and those that are in no file; 0 once it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0, 0
    found = {name: 1024 * int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in lines) if "Rss" in name}
    return sum(found.values()), found.get("RssAnon", 0)


def watched(line: list[str]) -> dict[str, Any]:
    """What the process of this command line tells, with the most memory that it had since."""
    # Memory that is given back is not counted twice.
    env = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    most = (0, 0)
    with tempfile.TemporaryFile("w+") as out, subprocess.Popen(line, env=env, stdout=out) as process:
        while process.poll() is None:
            most = tuple(map(max, most, taken(process.pid)))
            time.sleep(0.001)
        out.seek(0)
        said = out.read()
    if process.returncode:
        raise RuntimeError(f"{line} ended with status {process.returncode}")
    told: dict[str, Any] = json.loads(said.splitlines()[-1])
    whole, written = (a - b for a, b in zip(most, told["begin"]))
    return told | {"measured": [whole, written + told["read"]]}


def read_in_files() -> int:
    """Bytes of this process's weights that lie in a file that is mapped, and are never written."""
    import torch

    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(".safetensors")]
    spans = [[int(end, 16) for end in line[0].split("-")] for line in maps]
    frozen = [x for x in gc.get_objects() if issubclass(type(x), torch.nn.Parameter) and not x.requires_grad]
    return sum({x.data_ptr(): x.nbytes for x in frozen if any(a <= x.data_ptr() < b for a, b in spans)}.values())


read: list[int] = []  # of each step


def varied(prompts: list[str], completions: list[str], **columns: Any) -> list[float]:
    """A reward that few completions share, so that all are trained on; it looks at the process meanwhile."""
    read.append(read_in_files())
    return [float(number % 4) for number in range(len(completions))]


def one(name: str, folder: Path, device: str) -> None:
    """Prints what the run took and what was foretold, as JSON."""
    import torch

    import gspo
    from gspo.config.files import from_dict
    from gspo.plan.plan import plan
    from gspo.plan.work import Lengths

    torch.set_num_threads(2)
    for module in ("peft", "bitsandbytes"):  # what they take is none of the model's
        if importlib.util.find_spec(module):
            importlib.import_module(module)
    given = settings(name, folder, device)
    memory = plan(from_dict(given), Lengths(PROMPT, COMPLETION)).memory
    rows = [{"prompt": f"{i:03}".ljust(PROMPT, "a")} for i in range(64)]
    begin = taken(os.getpid())
    gspo.train(None, rows, varied, config=from_dict(given))
    told = {"begin": begin, "foretold": memory.fullest, "read": max(read)}
    if device != "cpu":
        told["peak"] = torch.cuda.max_memory_allocated()
    print(json.dumps(told | {"parts": memory.standing | memory.passing | {"less": -memory.disjoint}}))


def write_model(name: str, folder: Path, **more: int) -> None:
    """Of the case, with random weights. more: other sizes than COMMON's."""
    from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer, tiny_qwen3_moe

    sizes = CASES[name][0]
    build_tiny(tiny_qwen3_moe(**COMMON | more | sizes), longest_match_tokenizer(PIECES)).save(folder / "model")


def run(name: str, device: str = "cpu", **more: int) -> dict[str, Any]:
    """What a run of the case told, with the bytes that were measured: whole, and needed. more: sizes."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write_model(name, folder, **more)
        told = watched([sys.executable, __file__, "--one", name, str(folder), device])
    return told | {"measured": [told["peak"]] * 2} if "peak" in told else told


def main() -> None:
    """Prints a line a case."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--only", choices=CASES, action="append", help="one case; may be given several times")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    if options.one:
        one(options.one[0], Path(options.one[1]), options.one[2])
        return
    print(f"{'MiB':28} {'whole':>9} {'needed':>9} {'foretold':>9} {'ratio':>6}", flush=True)
    alone = [0.0, 0.0]
    for name in [NOTHING, *(options.only or [name for name in CASES if name != NOTHING])]:
        told = run(name)
        measured = [size / 2**20 - less for size, less in zip(told["measured"], alone)]
        foretold = told["foretold"] / 2**20
        if name == NOTHING:
            alone = measured
        whole, needed = measured
        print(f"{name:28} {whole:9.0f} {needed:9.0f} {foretold:9.0f} {foretold / needed:6.2f}", flush=True)
        if options.verbose:
            print({k: round(v / 2**20) for k, v in told["parts"].items()})


if __name__ == "__main__":
    main()
