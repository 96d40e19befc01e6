"""Turns replies and their marks into figures, of the benchmark and of each problem, and writes the result files."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gspo.eval.faults import named
from gspo.eval.replies import REFUSAL, REFUSED, Key, Mark, Reply
from gspo.rewards.answers import integer, same
from gspo.rollout.failures import commonest
from gspo.runs.log import finite, to_json
from gspo.safe import replace_file, visible
from gspo.statistics.intervals import Interval, accuracy_interval, no_narrower, standard_error
from gspo.statistics.scores import ladder, majority, over_these, passes
from gspo.types import Prompt

THESE, LIKE = "over these problems", "over problems like these"
"""Names of the two intervals."""
NEEDS_TWO = "needs 2 replies to a problem"
LONGEST, PAIRS = 100, 1000  # characters of a vote that is compared with others, and comparisons for a problem


def problem_rows(
    prompts: Sequence[Prompt], n: int, replies: Mapping[Key, Reply], marks: Mapping[Key, Mark]
) -> list[dict[str, Any]]:
    """One row of figures per problem, with `n` replies each."""
    rows = []
    for prompt in prompts:
        given = [replies[prompt.id, number] for number in range(n)]
        marked = [marks[prompt.id, number] for number in range(n)]
        row: dict[str, Any] = {
            "id": prompt.id,
            "correct": sum(mark.right for mark in marked),
            "right": [mark.right for mark in marked],
            "n": n,
            "truncated": sum(reply.stop == "length" for reply in given),
            "tokens": mean_length([reply.tokens for reply in given]),
            "failed": sum(mark.error is not None for mark in marked),  # not scored, the refused among them
            "errors": [mark.error for mark in marked if mark.error and mark.error != REFUSAL],
            "refused": sum(reply.stop == REFUSED for reply in given),
        }
        if "answer" in prompt.columns:
            pooled = pool(marked)
            votes = Counter(vote for vote in pooled if vote is not None)
            row |= {
                "answer": str(prompt.columns["answer"]),
                "majority": votes.most_common(1)[0][0] if votes else None,
                "answered": votes.total(),
                "votes": pooled,
            }
        rows.append(row)
    return rows


def pool(marks: Sequence[Mark]) -> list[str | None]:
    """The votes of the replies to a problem, where all that is the same answer has one text: what is right, and wrong
    answers one of which would be right if the other were.
    """
    right, wrong = (Counter(m.vote for m in marks if m.right == good and m.vote is not None) for good in (True, False))
    texts: dict[str | None, str] = {}  # of a wrong answer by its vote
    distinct: dict[str, int | None] = {}  # texts that later ones are compared with, and the integers that they are
    left = PAIRS
    for vote, _ in wrong.most_common():
        texts[vote] = vote
        if len(vote) > LONGEST:
            continue
        number = integer(vote)
        for other in [text for text, known in distinct.items() if number is None or known is None][:left]:
            left -= 1
            if _same(vote, other) or _same(other, vote):
                texts[vote] = other
                break
        else:
            distinct[vote] = number
    of_right = next((vote for vote, _ in right.most_common(1)), None)
    return [of_right if mark.right and mark.vote is not None else texts.get(mark.vote) for mark in marks]


def _same(answer: str, right: str) -> bool:
    try:
        return same(answer, right)
    except (ValueError, RecursionError):  # there is nothing to compare
        return False


def figures(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of a benchmark: avg@n with both intervals, pass@k and maj@k, and shares of all replies."""
    n = rows[0]["n"]
    correct = [row["correct"] for row in rows]
    these = over_these(correct, n)
    made: dict[str, Any] = {
        "problems": len(rows),
        "samples": n,
        "avg": these.mean,
        THESE: these,
        LIKE: no_narrower(accuracy_interval([c / n for c in correct]), these),
        "pass": {k: accuracy_interval([passes(n, c, k) for c in correct]) for k in ladder(n)},
    }
    if "votes" in rows[0]:
        by_k = {k: [majority(row["votes"], row["right"], k) for row in rows] for k in ladder(n)}
        made["maj"] = {k: accuracy_interval(values) for k, values in by_k.items()}
        made["answered"] = sum(row["answered"] for row in rows) / (n * len(rows))
    made["truncated"] = sum(row["truncated"] for row in rows) / (n * len(rows))
    made["tokens"] = mean_length([row["tokens"] for row in rows])
    made["failed"] = sum(row["failed"] for row in rows)
    made["why_failed"], _ = commonest([error for row in rows for error in row["errors"]])
    made["refused"] = [row["id"] for row in rows if row["refused"]]
    return made


def mean_length(tokens: Sequence[float]) -> float:
    """The mean of the lengths above 0: a refused reply has none, nor where an endpoint reports none. NaN without any."""
    known = [length for length in tokens if length > 0]
    return sum(known) / len(known) if known else math.nan


def percent_with_interval(value: Interval) -> str:
    """Formats a share and its interval in percent."""
    mean = f"{100 * value.mean:.1f} %"
    return mean if math.isnan(value.low) else f"{mean} [{100 * value.low:.1f}, {100 * value.high:.1f}]"


def describe_sizes(made: Mapping[str, Any]) -> str:
    """The number of problems and replies in words."""
    return f"{counted(made['problems'], 'problem', 'problems')}, {counted(made['samples'])} each"


def counted(count: int, what: str = "reply", more: str = "replies") -> str:
    """A count with its noun, in singular or plural."""
    return f"{count:,} {what if count == 1 else more}"


def unscored(made: Mapping[str, Any]) -> str:
    """A sentence about replies that could not be scored; "" if there are none."""
    if not made["failed"]:
        return ""
    counts = "counts" if made["failed"] == 1 else "count"
    refused = f"; the endpoint refused to answer {named(made['refused'])}" if made["refused"] else ""
    why = f"; the commonest reason: {visible(made['why_failed'])}" if made["why_failed"] else ""
    return f"{counted(made['failed'])} could not be scored and {counts} as wrong{why}{refused}"


def describe(made: Mapping[str, Any]) -> list[str]:
    """The figures as lines of text."""
    n = made["samples"]
    lines = [f"avg@{n}   {100 * made['avg']:.2f} %  ({describe_sizes(made)})"]
    for which in (THESE, LIKE):
        found = made[which]
        span = NEEDS_TWO if math.isnan(found.low) else f"{100 * found.low:.2f} to {100 * found.high:.2f} %"
        lines.append(f"  95 % interval {which}: {span}")
    for name in ("pass", "maj"):
        if name in made:
            lines.append("  ".join(f"{name}@{k} {100 * value.mean:.2f} %" for k, value in made[name].items()))
    lines.append(f"truncated {100 * made['truncated']:.1f} %")
    if made["tokens"] > 0:
        lines[-1] += f"  mean length {made['tokens']:.0f} tokens"
    if "answered" in made:
        lines[-1] += f"  with an answer {100 * made['answered']:.1f} %"
    return [*lines, unscored(made)] if made["failed"] else lines


def write(
    folder: Path,
    manifest: Mapping[str, Any],
    made: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    prompts: Sequence[Prompt],
    replies: Mapping[Key, Reply],
    marks: Mapping[Key, Mark],
    extra: Mapping[str, Any],
) -> None:
    """Writes results.json, and samples.jsonl in the format of lm-evaluation-harness: a line per problem with its replies."""
    name, n = manifest["benchmark"], made["samples"]
    stderr = {f"avg@{n}_stderr,none": standard_error([row["correct"] / n for row in rows])}
    kept = [{key: value for key, value in row.items() if key not in ("votes", "right", "errors")} for row in rows]
    results = {
        "results": {name: {"alias": name, f"avg@{n},none": made["avg"], **stderr}},
        "figures": {**made, **{which: (made[which].low, made[which].high) for which in (THESE, LIKE)}},
        **extra,
        "problems": kept,
        "manifest": manifest,
    }
    text = json.dumps(finite(results), default=_ends, indent=1, ensure_ascii=False)
    replace_file(folder / "results.json", f"{text}\n".encode("utf-8", "replace"))
    lines = []
    for number, prompt in enumerate(prompts):
        texts = [replies[prompt.id, i].text for i in range(n)]
        marked = [marks[prompt.id, i] for i in range(n)]
        doc = {"id": prompt.id, "prompt": prompt.messages} | {
            key: value for key, value in prompt.columns.items() if key in ("answer", "title", "difficulty", "rating")
        }
        line = {
            "doc_id": number,
            "doc": doc,
            "target": str(prompt.columns.get("answer", "")),
            "arguments": {"gen_args_0": {"arg_0": prompt.messages, "arg_1": manifest["sampling"]}},
            "resps": [texts],
            "filtered_resps": [mark.vote for mark in marked] if "answer" in prompt.columns else texts,
            "filter": "none",
            "metrics": ["exact_match"],
            "exact_match": sum(mark.right for mark in marked) / n,
            "correct": [mark.right for mark in marked],
            "doc_hash": _hash(doc),
            "prompt_hash": _hash(prompt.messages),
            "target_hash": _hash(str(prompt.columns.get("answer", ""))),
        }
        lines.append(to_json(line))
    replace_file(folder / "samples.jsonl", b"".join(lines))


def _hash(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def _ends(value: Interval) -> Any:
    return finite({"value": value.mean, "low": value.low, "high": value.high})
