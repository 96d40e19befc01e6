"""Sample rollouts of a run: a completion before and after training, tokens coloured by their log-ratio, a list to search.

What the functions return is shown by templates/samples.html.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import islice, product, repeat
from pathlib import Path
from statistics import median_low as median
from typing import Any, NamedTuple

from gspo.report.read import first_step, is_number, last_step, newest_rows
from gspo.safe import shorten

MOST_TOKENS = 2000  # shown per completion; longer ones lose their middle
MOST_COLOURED = 6  # completions whose tokens are coloured
MOST_LISTED, MOST_SEARCHED = 100, 20_000  # right ones, and wrong ones, of a file; those looked at
MOST_ROWS = 256  # of a step that are searched for a pair
SHADES = 4
ROUNDING = 1e-5  # of a log-probability: the colour scale never ends below it
NAMES = ("Before", "After")
SCALE = (-1, -0.7, -0.45, -0.2, 0, 0.2, 0.45, 0.7, 1)


class Token(NamedTuple):
    """A token of a completion: its CSS class, its numbers, and its text. `gap`: the number of tokens left out here."""

    shade: str
    numbers: str
    text: str
    gap: int = 0


class Passage(NamedTuple):
    """A part of a conversation. `kind`: "prompt" or "completion". `tokens`: those that were trained on, in place of text."""

    kind: str
    note: str
    text: str
    tokens: list[Token]


def before_and_after(folder: Path) -> dict[str, Any] | None:
    """A typical completion of the first evaluation or step beside one of the last, to the same prompt if there is one."""
    files = [folder / "evaluations.jsonl", folder / "rollouts.jsonl"]
    pair = next((pair for file in files if (pair := choose_pair(first_step(file), last_step(file)))), None)
    if pair is None:
        return None
    before, after = map(prompt_text, pair)
    which = "Two completions of the same prompt" if before == after else "Completions of two prompts"
    return {"which": which, "cards": [(f"{name}: step {row['step']}", _card(row)) for name, row in zip(NAMES, pair)]}


def coloured(path: Path) -> dict[str, Any] | None:
    """Completions of the last step with tokens coloured by their log-ratios: those of the lowest advantages and those of the
    highest. None if none has log-ratios.
    """
    rows = [row for row in last_step(path) if row.get("tokens") and row.get("log_ratio")]
    rows.sort(key=_advantage)
    rows = rows if len(rows) <= MOST_COLOURED else rows[: MOST_COLOURED // 2] + rows[-MOST_COLOURED // 2 :]
    if not rows:
        return None
    sizes = sorted(abs(v) for row in rows for v in row["log_ratio"] if v is not None)
    top = max(sizes[int(0.98 * (len(sizes) - 1))] if sizes else 0.0, ROUNDING)
    cards = [("", _card(row, top)) for row in rows]
    return {"step": rows[0]["step"], "top": f"{top:.2g}", "scale": [shade(v, 1.0) for v in SCALE], "cards": cards}


def _advantage(row: dict[str, Any]) -> float:
    """The advantage, else (by turn) the reward; the lowest of all if the completion was not scored."""
    if row["reward"] is None:
        return -math.inf
    return float(row["advantage"] if is_number(row.get("advantage")) else row["reward"])


def listed(folder: Path, threshold: float, served: bool = False) -> dict[str, Any]:
    """The newest completions, as many right as wrong ones, and why some are wrong.

    Args:
        folder: Run folder.
        threshold: The reward of a right one; of its first part, if the run scored it.
        served: Whether agents gave the rewards. Their parts are whatever the agents measured.
    """
    rows, why = [], ""
    for kind, name in (("held-out", "evaluations.jsonl"), ("training", "rollouts.jsonl")):
        why = why or _why(kind, last_step(folder / name), threshold, served)
        count = {True: 0, False: 0}
        for row in islice(newest_rows(folder / name), MOST_SEARCHED):
            right = not (cause := _cause(row, threshold, served))
            count[right] += 1
            if count[right] <= MOST_LISTED:
                rows.append(_listed(row, kind, cause))
            if min(count.values()) >= MOST_LISTED:
                break
    return {"rows": sorted(rows, key=lambda row: row["right"]), "why": why}


def _cause(row: dict[str, Any], threshold: float, served: bool = False) -> str:
    """Why a completion is wrong, as far as is known; "" for a right one."""
    parts = (not served and row.get("reward_parts")) or {"reward": row["reward"]}
    name, value = next(iter(parts.items()))
    if value is not None and value >= threshold - 1e-9:
        return ""
    if value is None or row["reward"] is None:
        return "no reward" if row["reward"] is None else f"not scored by {name}"
    if row.get("stop") == "length":
        return "cut off"
    graders = {"exact", "math", "task"} & parts.keys()
    if _answer(row) and value <= 0 and (name in graders or not graders):
        return "not the right answer"
    return f"{name if len(parts) > 1 else 'reward'} below {threshold:g}"


def _listed(row: dict[str, Any], kind: str, cause: str) -> dict[str, Any]:
    parts = [f"{name} {value:z.3g}" for name, value in row.get("reward_parts", {}).items() if value is not None]
    notes = [kind, cause, row.get("error", ""), *(parts if len(parts) > 1 else [])]
    return {
        "right": not cause, "step": row["step"], "reward": row["reward"], "tokens": len(row.get("token_ids", ())),
        "prompt": shorten(prompt_text(row), 600), "completion": shorten(row["completion"], 1000),
        "answer": shorten(_answer(row), 200), "notes": shorten("; ".join(filter(None, notes)), 400),
    }  # fmt: skip


def _why(kind: str, rows: list[dict[str, Any]], threshold: float, served: bool) -> str:
    """How many completions of a step are wrong, and why; "" if there are none."""
    counts = Counter(cause for row in rows if (cause := _cause(row, threshold, served)))
    causes = ", ".join(f"{count} {cause}" for cause, count in counts.most_common())
    total = f"{len(rows)} {kind} completions of step {rows[0]['step']}" if rows else ""
    return total and f"Of the {total} that were logged, {counts.total()} are wrong{': ' if causes else ''}{causes}."


def _card(row: dict[str, Any], top: float = 0.0) -> dict[str, Any]:
    """A rollout: facts, conversation, right answer. `top`: where the colours of tokens saturate; 0 for plain text."""
    parts = []
    for message in row.get("dialogue", ()):
        sampled = "turn" in message
        tokens = _tokens(row, top, message["turn"]) if sampled and top else []
        notes = [f"turn {message['turn'] + 1}" if sampled else message.get("role") or ""]
        notes += ["trained"] if tokens else []
        notes += [f"reward {message['reward']:+z.2f}".replace("-", "−")] if is_number(message.get("reward")) else []
        notes += [f"left out: {message['left_out']}"] if message.get("left_out") else []
        text = shorten(str(message.get("content") or ""), 2000)
        parts.append(Passage("completion" if sampled else "prompt", ", ".join(notes), text, tokens))
    if not parts:
        completion = Passage("completion", "", shorten(row["completion"], 8000), _tokens(row, top, 0) if top else [])
        parts = [Passage("prompt", "", prompt_text(row), []), completion]
    return {"about": _about(row), "parts": parts, "answer": shorten(_answer(row), 400)}


def _answer(row: dict[str, Any]) -> str:
    answer = row.get("answer")
    return "" if answer is None else str(answer)


def choose_pair(first: list[dict[str, Any]], last: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Chooses the rollouts that `before_and_after` shows. Of the pairs with the same prompt, if there are any, it picks one
    whose rewards are nearest to the median of either side, with a first completion of median length.
    """
    first, last = ([row for row in rows if row.get("reward") is not None][:MOST_ROWS] for rows in (first, last))
    if not first or not last or first[0]["step"] == last[0]["step"]:
        return None
    prompts, others = (list(map(prompt_text, rows)) for rows in (first, last))
    pairs = [(a, b) for a, x in zip(first, prompts) for b, y in zip(last, others) if x == y]
    pairs = pairs or list(product(first, last))
    usual = [median([pair[side]["reward"] for pair in pairs]) for side in (0, 1)]
    odd = [sum(abs(row["reward"] - reward) for row, reward in zip(pair, usual)) for pair in pairs]
    least = min(odd)
    ordinary = [pair for pair, distance in zip(pairs, odd) if distance == least]
    ordinary.sort(key=lambda pair: len(pair[0].get("token_ids", ())))
    return ordinary[len(ordinary) // 2]


def shade(value: float | None, top: float) -> str:
    """The CSS class of a log-ratio: u1 to u4 for more likely, d1 to d4 for less, "" near 0. It saturates at `top`."""
    level = min(SHADES, round(abs(value or 0.0) / top * SHADES))
    return f"{'u' if value and value > 0 else 'd'}{level}" if level else ""


def _tokens(row: dict[str, Any], top: float, turn: int) -> list[Token]:
    """The tokens of a turn that were trained on, without the middle of a long one."""
    logps, turns = row.get("logp") or repeat(None), row.get("token_turns") or repeat(0)
    tokens = []
    for text, ratio, logp, at in zip(row["tokens"], row["log_ratio"], logps, turns):
        if at == turn:
            known = {"log-ratio": ratio, "log-prob": logp}
            numbers = ", ".join(f"{name} {value:+z.3g}" for name, value in known.items() if value is not None)
            tokens.append(Token(shade(ratio, top), numbers, text.replace("\n", "↵\n")))
    half, gap = MOST_TOKENS // 2, len(tokens) - MOST_TOKENS
    return tokens if gap <= 0 else [*tokens[:half], Token("", "", "", gap), *tokens[-half:]]


def _about(row: dict[str, Any]) -> str:
    facts = [f"{len(row['token_ids'])} tokens"] if row.get("token_ids") else []
    facts += [f"reward {row['reward']:z.2f}".replace("-", "−")] if row["reward"] is not None else []
    facts += [f"advantage {row['advantage']:+z.2f}".replace("-", "−")] if is_number(row.get("advantage")) else []
    if row.get("stop") == "length":
        facts.append("reached a limit of length or turns" if row.get("dialogue") else "reached the length limit")
    facts += [f"error: {row['error']}"] if row.get("error") else []
    return ", ".join(facts)


def prompt_text(row: dict[str, Any]) -> str:
    """A prompt as text: the string, or its chat messages with their roles."""
    prompt = row["prompt"]
    return prompt if isinstance(prompt, str) else "\n".join(f"{m['role']}: {m.get('content', '')}" for m in prompt)
