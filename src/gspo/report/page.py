"""The report of a run: one HTML file that needs nothing else, for light and dark pages, screens and phones.

Reads what a run folder holds; imports nothing of gspo but the reader of run folders, the figures and the
samples.
"""

from __future__ import annotations

import base64
import statistics
import tomllib
from collections.abc import Sequence
from html import escape as html_escape
from pathlib import Path
from typing import Any

from gspo.report import samples
from gspo.report.plots import Drawn, draw
from gspo.report.read import RunMetrics, read_lines, read_run, run_names

FIRST = ("accuracy", "reward", "loss")  # figures that come first
ARROW = " → "
NBSP = "\u00a0"  # keeps a number and its unit on one line
LOSSES = (
    ("rollouts/failed", "rollouts had no reward"),
    ("groups/dropped", "groups were dropped: fewer than two rewards left"),
    ("updates/skipped", "updates were skipped: loss or gradient not finite"),
)


def write_report(run_dirs: Sequence[str | Path]) -> Path:
    """Draw the figures and write the report into the first run folder; returns its path.

    One run gives `report.html`, several laid over each other `comparison.html`. Raises ValueError where a
    folder has no metrics.
    """
    folders = [Path(folder) for folder in run_dirs]
    if not folders:
        raise ValueError("gspo report: name at least one run folder")
    runs = [read_run(folder, name) for folder, name in zip(folders, run_names(folders))]
    drawn = draw(folders)
    if len(runs) == 1:
        title, body = _report(folders[0], runs[0], drawn)
    else:
        title, body = _comparison(folders, runs, drawn)
    path = folders[0] / ("report.html" if len(runs) == 1 else "comparison.html")
    write_page(path, title, body)
    return path


def write_page(path: Path, title: str, body: str) -> None:
    """Writes `body` (HTML) as a page that needs no other file."""
    css = Path(__file__).with_name("report.css").read_text(encoding="utf-8")
    page = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'\">"
        f"<title>{escape(title)}</title>\n<style>\n{css}</style></head>\n"
        f"<body><main>\n{body}\n</main></body></html>\n"
    )
    part = path.with_suffix(".part")
    try:
        part.write_text(page, encoding="utf-8", errors="replace")
        part.replace(path)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def escape(text: Any) -> str:
    """`text` as HTML that cannot be markup; control characters become visible."""
    shown = "".join(c if c >= " " or c in "\n\t" else chr(0x2400 + ord(c)) for c in str(text))
    return html_escape(shown, quote=True)


def _report(folder: Path, run: RunMetrics, drawn: list[Drawn]) -> tuple[str, str]:
    config = _config(folder)
    headline = _headline(run)
    first = [d for d in drawn if d.name in FIRST]
    diagnostics = [d for d in drawn if d.name not in FIRST]
    origin = [
        run.name,
        _get(config, "algorithm", "name"),
        _get(config, "task", "source"),
        _get(config, "model", "path"),
    ]
    parts = [
        f'<p class="origin">{escape(" · ".join(x for x in origin if x))}</p>',
        f"<h1>{escape(headline)}</h1>",
        f'<p class="lead">{escape(_lead(run, config))}</p>',
        _tiles(run, config),
        _warnings([("", folder, run)]),
        f'<div class="figures first">{"".join(map(figure, first))}</div>',
        samples.before_and_after(folder, escape),
        "<h2>Diagnostics</h2>" if diagnostics else "",
        f'<div class="figures">{"".join(map(figure, diagnostics))}</div>',
        samples.coloured(folder / "rollouts.jsonl", escape),
        _configuration("Configuration", folder),
    ]
    return f"{run.name}: {headline}", "\n".join(p for p in parts if p)


def _comparison(folders: list[Path], runs: list[RunMetrics], drawn: list[Drawn]) -> tuple[str, str]:
    title = f"{len(runs)} runs compared"
    columns = ("run", "algorithm", "steps", "time", "held-out accuracy", "reward", "clipped", "completion length")
    rows = []
    for folder, run in zip(folders, runs):
        length = _ends(run, "completions/mean_length")
        cells = (
            run.name,
            _get(_config(folder), "algorithm", "name") or "",
            str(_steps(run)),
            _duration(_seconds(run)),
            _accuracy(run) + _last_interval(run),
            _change(_ends(run, "reward"), "{:.2f}"),
            _percent(_mean(run, "clip_ratio/tokens")),
            _change(length, "{:.0f}"),
        )
        rows.append("<tr>" + "".join(f"<td>{escape(cell) or '–'}</td>" for cell in cells) + "</tr>")
    head = "".join(f"<th>{c}</th>" for c in columns)
    parts = [
        f"<h1>{title}</h1>",
        f'<div class="wide"><table><thead><tr>{head}</tr></thead>',
        f"<tbody>{''.join(rows)}</tbody></table></div>",
        '<p class="note">Accuracy: first and last evaluation, with the 95 % interval of the last. Reward and '
        "length: means of the first and the last steps. Clipped: mean over the run.</p>",
        _warnings(list(zip([run.name for run in runs], folders, runs))),
        f'<h2>Figures</h2><div class="figures">{"".join(map(figure, drawn))}</div>',
        *(_configuration(f"Configuration of {run.name}", folder) for folder, run in zip(folders, runs)),
    ]
    return title, "\n".join(p for p in parts if p)


def _headline(run: RunMetrics) -> str:
    """What came of it, in words and numbers."""
    span = f"in {_steps(run)} step{'s' if _steps(run) != 1 else ''}, {_duration(_seconds(run))}"
    if len(run.series("eval/accuracy")[0]):
        return f"Held-out accuracy {_accuracy(run)} {span}"
    for key, name, form in (("reward", "Mean reward", "{:.2f}"), ("loss", "Loss", "{:.3f}")):
        if _ends(run, key):
            return f"{name} {_change(_ends(run, key), form)} {span}"
    return f"{_steps(run)} steps, {_duration(_seconds(run))}"


def _lead(run: RunMetrics, config: dict[str, Any]) -> str:
    """What stands below the headline: the intervals, the reward, how much was clipped."""
    sentences = []
    lines = [line for line in run.lines if line.get("eval/accuracy") is not None]
    with_interval = [line for line in lines if line.get("eval/accuracy_low") is not None]
    if with_interval:
        first, last = with_interval[0], with_interval[-1]
        prompts = last.get("eval/prompts")
        text = "95 % interval" + ("s" if first is not last else "") + " "
        text += " and ".join(_interval(line) for line in ([first, last] if first is not last else [last]))
        sentences.append(text + (f", on {prompts:.0f} prompts never trained on." if prompts else "."))
        if failed := last.get("eval/failed"):
            sentences.append(f"In the last evaluation {failed:.0f} completions were not scored; they count as wrong.")
        clear = first["eval/accuracy_high"] < last["eval/accuracy_low"] or first is last
        fell = last["eval/accuracy_high"] < first["eval/accuracy_low"]
        if fell:
            sentences.append("Accuracy fell.")
        elif not clear:
            sentences.append("The intervals overlap: the change may be chance.")
    if lines and _ends(run, "reward"):
        sentences.append(f"Mean reward in training {_change(_ends(run, 'reward'), '{:.2f}')}.")
    clipped = _mean(run, "clip_ratio/tokens")
    if clipped is not None:
        sentences.append(f"{_percent(clipped)} of the tokens were clipped.")
    planned = _get(config, "train", "steps")
    served = any("turns/trained" in line for line in run.lines)  # agents decide how many steps there are
    if isinstance(planned, int) and planned > _steps(run) and not served:
        sentences.append(f"Not finished: {_steps(run)} of {planned} steps.")
    return " ".join(sentences)


def _tiles(run: RunMetrics, config: dict[str, Any]) -> str:
    """The key figures: (name, value, what else to know)."""
    tiles: list[tuple[str, str, str]] = []
    if len(run.series("eval/accuracy")[0]):
        tiles.append(("Held-out accuracy", _accuracy(run), "first and last evaluation"))
    steps = run.series("reward")[0] if _ends(run, "reward") else run.series("loss")[0]
    few = max(1, len(steps) // 12)
    ends = f"mean of the first and last {few} steps" if few > 1 else "first and last step"
    if _ends(run, "reward"):
        tiles.append(("Reward", _change(_ends(run, "reward"), "{:.2f}"), ends))
    elif _ends(run, "loss"):
        tiles.append(("Loss", _change(_ends(run, "loss"), "{:.3f}"), ends))
    for key in dict.fromkeys(k for line in run.lines for k in line if k.startswith("completion/")):
        change = ARROW.join(map(_percent, _ends(run, key)))
        tiles.append((key.removeprefix("completion/").replace("_", " ").capitalize() + " completions", change, ends))
    tiles += _watched(run, config, ends)
    if _mean(run, "clip_ratio/tokens") is not None:
        low, high = (run.series(k)[1] for k in ("clip/epsilon", "clip/epsilon_high"))
        span = f"range −{low[-1]:.3g} to +{high[-1]:.3g}" if len(low) and len(high) else "mean over the run"
        tiles.append(("Clipped tokens", _percent(_mean(run, "clip_ratio/tokens")), span))
    if _mean(run, "moe/volatility") is not None:
        agree = _mean(run, "moe/sampler_agreement")
        note = f"{_percent(agree)} agree with the sampler's" if agree is not None else "mean over the run"
        tiles.append(("Experts changed", _percent(_mean(run, "moe/volatility")), note))
    if _ends(run, "completions/mean_length"):
        cut = _mean(run, "completions/clipped_ratio")
        text = f"tokens; {_percent(cut)} truncated" if cut is not None else "tokens"
        tiles.append(("Completion length", _change(_ends(run, "completions/mean_length"), "{:.0f}"), text))
    times, speed, tokens = (run.series(k)[1] for k in ("time/step", "tokens_per_second", "tokens"))
    if len(times):
        note = f"{statistics.median(times):.2g} s a step"
        note += f", {statistics.median(speed):,.0f} tokens/s" if len(speed) else ""
        note += f", {_count(float(tokens.sum()))} tokens" if len(tokens) else ""
        tiles.append(("Time", _duration(_seconds(run)), note))
    cells = (f'<div class="tile"><span>{escape(a)}</span><b>{escape(b)}</b><small>{escape(c)}</small></div>'
             for a, b, c in tiles)  # fmt: skip
    return f'<div class="tiles">{"".join(cells)}</div>' if tiles else ""


def _watched(run: RunMetrics, config: dict[str, Any], ends: str) -> list[tuple[str, str, str]]:
    """Key figures of the reward functions with weight 0, which only watch."""
    tiles = []
    functions, weights = _get(config, "reward", "functions"), _get(config, "reward", "weights")
    for function, weight in zip(functions or (), weights or ()):
        name = str(function).rpartition(":")[2]
        evaluated = run.series(f"eval/reward/{name}")[1]
        values = (evaluated[0], evaluated[-1]) if len(evaluated) > 1 else _ends(run, f"reward/{name}")
        if weight == 0 and values:
            share = all(0 <= v <= 1 for v in values)
            text = ARROW.join(_percent(v) if share else f"{v:.2f}" for v in values)
            span = "first and last evaluation" if len(evaluated) > 1 else ends
            tiles.append((f"Watched: {name}", text, span))
    return tiles


def _warnings(runs: list[tuple[str, Path, RunMetrics]]) -> str:
    texts = []
    for name, folder, run in runs:
        first_steps: dict[str, int] = {}
        for event in read_lines(folder / "events.jsonl"):
            if event.get("kind") == "warning":
                first_steps.setdefault(str(event.get("text", "")), event.get("step") or 0)
        prefix = f"{name}, " if name else ""
        texts += [f"{text} ({prefix}step {step})" for text, step in first_steps.items()]
        for key, meaning in LOSSES:
            count = run.series(key)[1].sum()
            if count:
                texts.append(f"{count:.0f} {meaning}" + (f" ({name})" if name else ""))
    if not texts:
        return ""
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f'<div class="warnings"><h2>Warnings</h2><ul>{items}</ul></div>'


def figure(drawn: Drawn) -> str:
    """A drawn figure as HTML, both renderings within."""
    light, dark = ("data:image/png;base64," + base64.b64encode(p.read_bytes()).decode() for p in (drawn.light, drawn.dark))
    return (
        f'<figure><picture><source media="(prefers-color-scheme: dark)" srcset="{dark}">'
        f'<img src="{light}" alt="{escape(drawn.title)}. {escape(drawn.caption)}"></picture>'
        f"<figcaption>{escape(drawn.caption)}</figcaption></figure>\n"
    )


def _configuration(title: str, folder: Path) -> str:
    path = folder / "config.toml"
    if not path.exists():
        return ""
    text = path.read_text(encoding="utf-8", errors="replace")
    return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"


def _config(folder: Path) -> dict[str, Any]:
    try:
        return tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _get(config: dict[str, Any], section: str, key: str) -> Any:
    table = config.get(section)
    return table.get(key) if isinstance(table, dict) else None


def _steps(run: RunMetrics) -> int:
    return max((int(line["step"]) for line in run.lines if line.get("step") is not None), default=0)


def _seconds(run: RunMetrics) -> float:
    """Time of the steps and the evaluations."""
    return float(run.series("time/step")[1].sum() + run.series("time/eval")[1].sum())


def _duration(seconds: float) -> str:
    if seconds < 180:
        return f"{seconds:.0f}{NBSP}s" if seconds >= 10 else f"{seconds:.1f}{NBSP}s"
    return f"{seconds / 60:.0f}{NBSP}min" if seconds < 7200 else f"{seconds / 3600:.1f}{NBSP}h"


def _count(number: float) -> str:
    for size, name in ((1e9, "billion"), (1e6, "million")):
        if number >= size:
            return f"{number / size:.1f} {name}"
    return f"{number:,.0f}"


def _mean(run: RunMetrics, key: str) -> float | None:
    values = run.series(key)[1]
    return float(values.mean()) if len(values) else None


def _ends(run: RunMetrics, key: str) -> tuple[float, ...]:
    """Means of the first and the last twelfth of a metric's steps; a single value as it is; () for none."""
    values = run.series(key)[1]
    few = max(1, len(values) // 12)
    return tuple(float(part.mean()) for part in (values[:few], values[-few:])[: len(values)]) if len(values) else ()


def _change(values: Sequence[float], form: str) -> str:
    return ARROW.join(form.format(v) for v in values)


def _accuracy(run: RunMetrics) -> str:
    values = run.series("eval/accuracy")[1]
    return ARROW.join(_percent(v) for v in ([values[0], values[-1]] if len(values) > 1 else values))


def _interval(line: dict[str, Any]) -> str:
    return f"{100 * line['eval/accuracy_low']:.0f}–{_percent(line['eval/accuracy_high'])}"


def _last_interval(run: RunMetrics) -> str:
    lines = [line for line in run.lines if line.get("eval/accuracy_low") is not None]
    return f" ({_interval(lines[-1])})" if lines else ""


def _percent(share: float | None) -> str:
    if share is None:
        return ""
    return f"{100 * share:.0f}{NBSP}%" if share >= 0.1 or share == 0 else f"{100 * share:.2g}{NBSP}%"
