"""How OpenMP's threads should wait for each other: an update of SmolLM2, with none, one and two other busy processes.

python lab/speed/waiting.py [--repeats 2] [--updates 3]

Each arm runs in a process of its own, in turn: two threads that spin as long as GNU OpenMP lets them by default, for 1,000
rounds (gspo's default), or not at all, and one thread. Printed: the median seconds of an update, without the first.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time

ARMS = {
    "2 threads, spinning": {"GOMP_SPINCOUNT": "300000"},  # GNU OpenMP's own default
    "2 threads, gspo's default": {"GOMP_SPINCOUNT": "1000"},
    "2 threads, sleeping": {"OMP_WAIT_POLICY": "PASSIVE"},
    "1 thread": {"OMP_NUM_THREADS": "1"},
}
TOKENS = 64, 32, 8, 1  # of a prompt and of a completion, completions of a prompt, prompts


def measure(updates: int) -> None:
    """Prints the seconds of each update."""
    import torch
    import update
    from models import MODELS

    from gspo.backends.hf.policy import HFPolicy
    from gspo.config.policy import ModelConfig

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 2)))
    model = MODELS["smollm2"]["dense"](ModelConfig(device="cpu"))
    work = update.one_pass(HFPolicy(model, layout="auto"), update.completions(*TOKENS), 16_384)
    for _ in range(updates + 1):
        begin = time.perf_counter()
        work()
        print("seconds", time.perf_counter() - begin)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--updates", type=int, default=3)
    parser.add_argument("--measure", action="store_true", help="one arm, in this process")
    options = parser.parse_args()
    if options.measure:
        measure(options.updates)
        return
    again = [sys.executable, __file__, "--measure", "--updates", str(options.updates)]
    for busy in range(3):
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
        try:
            found: dict[str, list[float]] = {arm: [] for arm in ARMS}
            for _ in range(options.repeats):
                for arm, variables in ARMS.items():
                    out = subprocess.run(again, env=os.environ | variables, check=True, stdout=subprocess.PIPE, text=True)
                    seconds = [float(line.split()[1]) for line in out.stdout.splitlines() if line.startswith("seconds")]
                    found[arm] += seconds[1:]
        finally:
            for other in others:
                other.kill()
        told = ", ".join(f"{arm} {statistics.median(values):.2f} s" for arm, values in found.items())
        print(f"{busy} other busy processes: {told}", flush=True)


if __name__ == "__main__":
    main()
