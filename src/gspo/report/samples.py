"""Sample rollouts of a run as HTML: a completion before and after training, and tokens coloured by their log-ratio.

Imports nothing from gspo but the reader of run folders.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median_low as median
from typing import Any

from gspo.report.read import first_step, last_step

MOST_TOKENS = 2000  # shown per completion; longer ones lose their middle
MOST_COLOURED = 6  # completions whose tokens are coloured
MOST_ROWS = 512  # rollouts of a step that are searched for a pair
SHADES = 4
ROUNDING = 1e-5  # of a log-probability: the colour scale never ends below it
Escape = Callable[[Any], str]


def before_and_after(folder: Path, escape: Escape) -> str:
    """A completion of the first evaluation beside one of the last, to the same held-out prompt. Without evaluations, they
    are from the first and the last step, to similar prompts.

    Both are typical: each has the median reward of its side. "" if there are no two steps.
    """
    pair = None
    for name in ("evaluations.jsonl", "rollouts.jsonl"):
        pair = pair or choose_pair(first_step(folder / name), last_step(folder / name))
    if pair is None:
        return ""
    cards = []
    for name, row in zip(("Before", "After"), pair):
        cards.append(
            f'<div class="card"><h3>{name}: step {escape(row["step"])}</h3><p class="about">{escape(_about(row))}</p>'
            f"{_conversation(row, escape)}{_right(row, escape)}</div>"
        )
    texts = [prompt_text(row) for row in pair]
    shared = set(texts[0].split()) & set(texts[1].split())
    which = "Completions of two similar prompts" if shared else "Completions of two prompts"
    which = "Two completions of the same prompt" if texts[0] == texts[1] else which
    return (
        f'<h2>A completion before and after</h2><p class="note">{which}, one from the beginning and one from the end of '
        "training. Each is ordinary: of the completions that could stand here, it has the median reward or one near it.</p>"
        f'<div class="pair">{"".join(cards)}</div>'
    )


def _conversation(row: dict[str, Any], escape: Escape, completions: Callable[[int], str] | None = None) -> str:
    """The prompt and the completion; or a conversation turn by turn, with speakers and rewards. `completions`: returns the
    HTML of the policy's tokens in a turn; None for plain text.
    """
    if not row.get("dialogue"):
        completion = completions(0) if completions else escape(_shorten(str(row.get("completion", ""))))
        return f'<div class="prompt">{escape(prompt_text(row))}</div><div class="completion">{completion}</div>'
    turns = []
    for message in row["dialogue"]:
        spoken, shown = "turn" in message, escape(_shorten(str(message.get("content", "")), 2000))
        notes = [f"turn {message['turn'] + 1}" if spoken else str(message.get("role", ""))]
        notes += [f"reward {value:+z.2f}".replace("-", "−") for value in [message.get("reward")] if value is not None]
        notes += [f"left out: {why}" for why in [message.get("left_out")] if why]
        if spoken and completions:
            spans = completions(message["turn"])
            notes[0] += ", trained" if spans else ""
            shown = spans or shown
        kind = "completion" if spoken else "prompt"
        turns.append(f'<p class="about">{escape(", ".join(notes))}</p><div class="{kind}">{shown}</div>')
    return "".join(turns)


def _right(row: dict[str, Any], escape: Escape) -> str:
    """The correct answer, if the data has one."""
    text = row.get("answer", "")
    return f'<p class="about">Right answer: <b>{escape(_shorten(text, 400))}</b></p>' if text else ""


def choose_pair(first: list[dict[str, Any]], last: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Chooses the rollouts that `before_and_after` shows. Among the pairs with the most similar prompts, it picks one whose
    rewards are nearest to the median of either side, with a first completion of median length.
    """
    first, last = ([row for row in rows if row.get("reward") is not None][:MOST_ROWS] for rows in (first, last))
    if not first or not last or first[0]["step"] == last[0]["step"]:
        return None
    words = {text: set(text.split()) for text in {prompt_text(row) for row in first + last}}
    befores, afters = (list(dict.fromkeys(map(prompt_text, rows)))[:64] for rows in (first, last))

    def alike(a: str, b: str) -> float:
        return len(words[a] & words[b]) / max(1, len(words[a] | words[b])) if a != b else 2.0

    closest = max(alike(a, b) for a in befores for b in afters)
    pairs = [
        (before, after)
        for before in first
        for after in last
        if (a := prompt_text(before)) in befores and (b := prompt_text(after)) in afters and alike(a, b) == closest
    ]
    usual = [median([pair[side]["reward"] for pair in pairs]) for side in (0, 1)]

    def odd(pair: tuple[dict[str, Any], dict[str, Any]]) -> float:
        return sum(abs(row["reward"] - reward) for row, reward in zip(pair, usual))

    least = min(map(odd, pairs))
    ordinary = sorted((p for p in pairs if odd(p) == least), key=lambda p: len(p[0].get("token_ids") or ()))
    return ordinary[len(ordinary) // 2]


def coloured(path: Path, escape: Escape) -> str:
    """Completions of the last step with tokens coloured by their log-ratios; "" if none has log-ratios."""
    rows = [row for row in last_step(path) if row.get("tokens") and row.get("log_ratio")][:MOST_COLOURED]
    if not rows:
        return ""
    sizes = sorted(abs(v) for row in rows for v in row["log_ratio"] if v is not None)
    top = max(sizes[int(0.98 * (len(sizes) - 1))] if sizes else 0.0, ROUNDING)
    cards = [
        f'<div class="card"><p class="about">{escape(_about(row))}</p>'
        f"{_conversation(row, escape, partial(_tokens, row, top, escape))}{_right(row, escape)}</div>"
        for row in rows
    ]
    swatches = "".join(f'<i class="{shade(v, 1.0)}"></i>' for v in (-1, -0.7, -0.45, -0.2, 0, 0.2, 0.45, 0.7, 1))
    return (
        f"<h2>Completions of step {escape(rows[0]['step'])}, token by token</h2>"
        f'<div class="legend"><span>less likely after the update, −{top:.2g}</span>'
        f'<span class="scale">{swatches}</span>'
        f"<span>+{top:.2g}, more likely</span></div>"
        '<p class="note">The colour shows the log-ratio of a token: its log-probability after the step minus the one that '
        f"it was sampled with. Hover over a token to see its numbers.</p>{''.join(cards)}"
    )


def shade(value: float | None, top: float) -> str:
    """The CSS class of a log-ratio: u1 to u4 for more likely, d1 to d4 for less likely, "" near 0.

    The colour saturates at `top`.
    """
    if value is None or not math.isfinite(value):
        return ""
    level = min(SHADES, round(abs(value) / top * SHADES))
    return f"{'u' if value > 0 else 'd'}{level}" if level else ""


def _tokens(row: dict[str, Any], top: float, escape: Escape, turn: int) -> str:
    """The tokens of a turn that were trained on."""
    nothing, turns = [None] * len(row["tokens"]), row.get("token_turns") or [0] * len(row["tokens"])
    each = zip(row["tokens"], row["log_ratio"], row.get("logp") or nothing, turns)
    tokens = [entry[:3] for entry in each if entry[3] == turn]
    spans, half = [], MOST_TOKENS // 2
    for i, (token, ratio, logp) in enumerate(tokens):
        if len(tokens) > MOST_TOKENS and half <= i < len(tokens) - half:
            if i == half:
                spans.append(f'<span class="gap"> … {len(tokens) - 2 * half:,} tokens left out … </span>')
            continue
        known = {"log-ratio": ratio, "log-prob": logp}
        numbers = [f"{name} {value:+z.3g}" for name, value in known.items() if value is not None]
        text = escape(str(token)).replace("\n", "↵\n")
        spans.append(f'<i class="{shade(ratio, top)}" title="{escape(", ".join(numbers))}">{text}</i>')
    return "".join(spans)


def _about(row: dict[str, Any]) -> str:
    facts = [f"{len(row['token_ids'])} tokens" if row.get("token_ids") else ""]
    for key, name in (("reward", "reward"), ("advantage", "advantage")):
        value = row.get(key)
        if isinstance(value, (int, float)):
            facts.append(f"{name} {value:{'+' if key == 'advantage' else ''}.2f}".replace("-", "−"))
    limit = "a limit of length or turns" if row.get("dialogue") else "the length limit"
    facts.append(f"reached {limit}" if row.get("stop") == "length" else "")
    facts.append(f"error: {row['error']}" if row.get("error") else "")
    return ", ".join(s for s in facts if s)


def prompt_text(row: dict[str, Any]) -> str:
    """A prompt as text: the string, or its chat messages with their roles."""
    prompt = row.get("prompt", "")
    if not isinstance(prompt, list):
        return str(prompt)
    return "\n".join(f"{m.get('role', '')}: {m.get('content', '')}" if isinstance(m, dict) else str(m) for m in prompt)


def _shorten(text: str, most: int = 8000) -> str:
    cut = len(text) - most
    return text if cut <= 0 else f"{text[: most // 2]}\n… {cut:,} characters left out …\n{text[-most // 2 :]}"
