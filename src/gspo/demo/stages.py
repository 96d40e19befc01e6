"""`gspo demo`: gets a model, trains it, evaluates it before and after, and prints the results."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.text import Text

from gspo import api
from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer, tiny_qwen3_moe
from gspo.config.files import load
from gspo.demo import count_bits, smollm2, tool_task
from gspo.report.read import first_step, last_step, read_lines
from gspo.report.samples import choose_pair
from gspo.runs.progress import Terminal
from gspo.safe import visible

HERE = Path(__file__).parent


@dataclass(frozen=True)
class ColdStart:
    """How a demo makes a model that can do something: one with random weights imitates."""

    pieces: Sequence[str]  # vocabulary of its tokenizer
    template: str | None  # its chat template
    file: str  # configuration
    text: str  # what it is, for the terminal


@dataclass(frozen=True)
class Demo:
    """A demo: the configuration of its training, and what is trained, for the terminal."""

    file: str
    text: str
    cold_start: ColdStart | None  # how the model comes about; None: it is SmolLM2
    watched: Mapping[str, tuple[str, str]]  # evaluation metrics to print, each with its label and number format


DEMOS = {
    "sums": Demo(
        "../recipes/smollm2-words.toml", "SmolLM2-135M-Instruct learns to answer sums in words, from rewards alone", None,
        {"eval/mean_length": ("Tokens", ".0f")},
    ),
    "moe": Demo(
        "train.toml", "rewards alone tell it which of the two pays",
        ColdStart(
            count_bits.PIECES, None, "cold_start.toml",
            "a Qwen3-MoE with random weights imitates worked solutions and guesses",
        ),
        {"eval/reward/worked": ("Worked completions", ".0%")},
    ),
    "agent": Demo(
        "agent_train.toml", "rewards of whole conversations tell it that looking pays",
        ColdStart(
            tool_task.PIECES, tool_task.TEMPLATE, "agent_cold_start.toml",
            "a Qwen3-MoE with random weights imitates players who look and players who guess",
        ),
        {"eval/reward/looks": ("Looks", ".2f"), "eval/reward": ("Reward", ".2f")},
    ),
}  # fmt: skip


def run_demo(folder: Path, seed: int = 0, resume: bool = False, kind: str = "sums") -> int:
    """Runs the whole demo in `folder`, and its cold start, if any, in `folder`-cold-start. Returns the exit status."""
    demo = DEMOS[kind]
    console = Terminal(highlight=False)
    begin = time.perf_counter()
    start = folder.with_name(f"{folder.name}-cold-start") if demo.cold_start else None
    _check_folders(folder, start, resume, "--resume" if kind == "sums" else f"--{kind} --resume")
    if demo.cold_start is None:
        console.print("[bold]1  The model[/]: SmolLM2-135M-Instruct, 30 layers, 135 million weights")
        path = smollm2.fetch_smollm2(lambda text: console.print(Text(visible(f"   {text}")), soft_wrap=True))
    else:
        assert start is not None
        path = start / "model"
        console.print(f"[bold]1  Cold start[/]: {demo.cold_start.text}", soft_wrap=True)
        if not path.exists() and not _imitate(demo.cold_start, start, seed, resume and (start / "config.toml").exists()):
            return 130
    console.print(f"\n[bold]2  GSPO[/]: {demo.text}", soft_wrap=True)
    trained = api.train(
        config=HERE / demo.file,
        resume=resume and (folder / "config.toml").exists(),
        model=str(path),
        task={"seed": seed},
        train={"seed": seed},
        log={"dir": str(folder)},
    )
    if not trained.finished:
        return 130
    _print_results(console, demo, folder, time.perf_counter() - begin)
    return 0


def _check_folders(folder: Path, start: Path | None, resume: bool, way: str) -> None:
    """Raises ValueError if a folder is in use, or if there is nothing to resume. way: the options that go on with a demo."""
    first = start or folder
    if resume and not first.exists():
        raise ValueError(f"--resume: there is no {first}; start the demo without --resume")
    for used in () if resume else (folder, first):
        if used.is_file() or (used.exists() and any(used.iterdir())):
            raise ValueError(f"{used} exists: give another --dir, or go on with a stopped demo by {way}")


def _imitate(cold_start: ColdStart, folder: Path, seed: int, resume: bool) -> bool:
    """Runs a cold start. Returns whether it finished."""
    tokenizer = longest_match_tokenizer(cold_start.pieces)
    tokenizer.chat_template = cold_start.template
    tiny = build_tiny(tiny_qwen3_moe(context=256), tokenizer, seed)
    recipe = load(HERE / cold_start.file)
    result = api.sft(
        tiny.model,
        tokenizer=tiny.tokenizer,
        config=recipe,
        resume=resume,
        task={"config": recipe.task.config | {"seed": seed}, "seed": seed},
        log={"dir": str(folder)},
    )
    return result.finished


def _print_results(console: Terminal, demo: Demo, folder: Path, seconds: float) -> None:
    """Prints the results, and a completion before and after training."""
    lines = list(read_lines(folder / "metrics.jsonl"))
    evaluated = [line for line in lines if "eval/accuracy" in line]
    before, after = evaluated[0], evaluated[-1]
    steps = [line for line in lines if line.get("updates")]
    clipped = sum(line["clip_ratio/tokens"] for line in steps) / len(steps)

    def share(line: dict[str, Any]) -> str:
        low, high = line["eval/accuracy_low"], line["eval/accuracy_high"]
        return f"{line['eval/accuracy']:.1%} ({low:.1%} to {high:.1%})"

    count, low, high = after["eval/prompts"], steps[-1]["clip/epsilon"], steps[-1]["clip/epsilon_high"]
    console.print(
        f"\n[bold]Held-out accuracy[/]  {share(before)}  ->  [bold]{share(after)}[/], {count:.0f} questions never trained on"
    )
    for metric, (name, form) in demo.watched.items():
        console.print(f"[bold]{name:<18}[/]  {before[metric]:{form}}  ->  [bold]{after[metric]:{form}}[/]")
    console.print(f"[bold]Clipped tokens[/]     {clipped:.0%} at the clip range {low:g}/{high:g}")
    completions = folder / "evaluations.jsonl"
    pair = choose_pair(first_step(completions), last_step(completions))
    assert pair is not None, "each demo evaluates before the first step and after the last"
    console.print(Text.assemble("\nA held-out question: ", (visible(pair[0]["prompt"]), "bold")))
    for name, rollout in zip(("Before", "After"), pair):
        turns = [f"{message['role']}: {message['content']}" for message in rollout.get("dialogue", [])[1:]]
        text = " ".join(turns) or rollout["completion"]
        console.print(Text(visible(f"{name}: {text}"), "green" if rollout["reward"] > 0.5 else "red"))
    report = (visible(folder / "report.html"), "bold")
    console.print(Text.assemble("\nReport: ", report, f"   whole demo: {seconds:.0f} s"))
