"""`gspo demo`: build, cold-start, train, evaluate, and tell what happened."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from gspo import api
from gspo.backends.tiny import build_tiny, longest_match_tokenizer, tiny_qwen3_moe
from gspo.configfile import load
from gspo.demo import count_bits
from gspo.runfiles import first_step, last_step, read_lines
from gspo.samples import choose_pair

HERE = Path(__file__).parent


def play(folder: Path, seed: int = 0, resume: bool = False) -> int:
    """The whole demo into `folder`, its cold start into `folder`-cold-start. Returns the exit status."""
    console = Console(highlight=False)
    begin = time.perf_counter()
    start = folder.with_name(f"{folder.name}-cold-start")
    if resume and not start.exists():
        raise ValueError(f"--resume: there is no {start}; start the demo without --resume")
    for used in () if resume else (folder, start):
        if used.is_file() or (used.exists() and any(used.iterdir())):
            raise ValueError(f"{used} exists: give another --dir, or go on with a stopped demo by --resume")
    console.print("[bold]1  Cold start[/]: a Qwen3-MoE with random weights imitates worked solutions and guesses")
    if not (start / "model").exists():
        done = _cold_start(start, seed, resume and (start / "config.toml").exists())
        if not done:
            return 130
    console.print("\n[bold]2  GSPO[/]: rewards alone tell it which of the two pays")
    trained = api.train(
        config=HERE / "train.toml",
        resume=resume and (folder / "config.toml").exists(),
        model=str(start / "model"),
        task={"seed": seed},
        train={"seed": seed},
        log={"dir": str(folder)},
    )
    if not trained.finished:
        return 130
    _tell(console, folder, time.perf_counter() - begin)
    return 0


def _cold_start(folder: Path, seed: int, resume: bool) -> bool:
    tiny = build_tiny(tiny_qwen3_moe(context=256), longest_match_tokenizer(count_bits.PIECES), seed)
    recipe = load(HERE / "cold_start.toml")
    result = api.sft(
        tiny.model,
        tokenizer=tiny.tokenizer,
        config=recipe,
        resume=resume,
        task={"config": recipe.task.config | {"seed": seed}, "seed": seed},
        log={"dir": str(folder)},
    )
    return result.finished


def _tell(console: Console, folder: Path, seconds: float) -> None:
    """The story in numbers, and a reply before and after."""
    lines = list(read_lines(folder / "metrics.jsonl"))
    evaluated = [line for line in lines if "eval/accuracy" in line]
    before, after = evaluated[0], evaluated[-1]
    steps = [line for line in lines if line.get("updates")]
    clipped = sum(line["clip_ratio/tokens"] for line in steps) / len(steps)

    def share(line: dict[str, Any]) -> str:
        low, high = line["eval/accuracy_low"], line["eval/accuracy_high"]
        return f"{line['eval/accuracy']:.1%} ({low:.1%} to {high:.1%})"

    console.print(
        f"\n[bold]Held-out accuracy[/]  {share(before)}  ->  [bold]{share(after)}[/], 512 questions never trained on"
    )
    console.print(
        f"[bold]Worked replies[/]     {before['eval/reward/worked']:.0%}  ->  [bold]{after['eval/reward/worked']:.0%}[/]"
    )
    console.print(f"[bold]Clipped tokens[/]     {clipped:.0%} at the paper's clip range 3e-4/4e-4")
    replies = folder / "evaluations.jsonl"
    pair = choose_pair(first_step(replies), last_step(replies))
    assert pair is not None, "train.toml evaluates before the first step and after the last"
    console.print(Text.assemble("\nA held-out question: ", (pair[0]["prompt"], "bold")))
    for name, rollout in zip(("Before", "After"), pair):
        console.print(Text(f"{name}: {rollout['completion']}", "green" if rollout["reward"] == 1 else "red"))
    console.print(f"\nReport: [bold]{folder / 'report.html'}[/]   whole demo: {seconds:.0f} s")
