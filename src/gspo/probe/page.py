"""The page of a probe: what to do first, then what led to it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import tomli_w

from gspo.config.files import to_toml
from gspo.config.schema import Config
from gspo.probe.advice import Advice, Standing
from gspo.probe.candidates import YOURS, Candidate
from gspo.probe.figures import draw, replayed
from gspo.probe.measure import Measured, ProbePlan
from gspo.probe.merit import Span
from gspo.report.page import escape, figure, table, write_page
from gspo.safe import own_folder

NAME = "probe.html"
NOTE = (
    "Update: how far one update goes the right way, from -1 to 1, averaged over the ages that the run trains at: the "
    "cosine that the gradient of a mini-batch, before the optimizer, has on average with the gradient on policy. "
    "Direction: the same without the noise of a mini-batch, at the last of these ages; 1 where the old completions "
    "still say what fresh ones would. Signal to noise: of a mini-batch. Largest group: its share of all squared "
    "gradient norms. Clipped: tokens that lose their gradient, where A < 0 and where A > 0. Numerics: tokens that the "
    "difference of sampler and trainer alone would clip. Intervals: 95 %, by resampling groups; shares have none."
)

REPLAYED = " Rows with R2 or R3: with the experts of the old policy, or of the sampler, replayed."


def write(config: Config, plan: ProbePlan, found: Measured, advice: Advice, folder: Path) -> Path:
    """Writes probe.html and its figures. Returns its path."""
    title = headline(advice)
    drawn = draw(found, advice, plan, own_folder(folder / "figures"))
    reasons = "".join(f"<li>{escape(text)}</li>" for text in advice.reasons)
    notes = "".join(f"<li>{escape(text)}</li>" for text in found.notes)
    parts = [
        f'<p class="origin">{escape(f"{config.model.path} · {config.task.source}")}</p>',
        f"<h1>{escape(title)}</h1>",
        f'<p class="lead">{escape(_lead(plan, found))}</p>',
        f"<ul>{reasons}</ul>" if reasons else "",
        _settings(advice, folder),
        _tiles(found),
        f'<div class="figures first">{"".join(map(figure, drawn))}</div>',
        f"<h2>All candidates</h2>{_lines(advice.lines)}",
        f'<p class="note">{escape(NOTE)}</p>',
        f"<h2>Ratios by age</h2>{_ages(found)}",
        '<p class="note">Age: updates since the completions were sampled. Spread and drift: standard deviation and mean of '
        f"log ratios. Tail index: of a token's log ratio; below 2 its variance is infinite.{REPLAYED * replayed(found)}</p>",
        f'<div class="warnings"><h2>Not measured</h2><ul>{notes}</ul></div>' if notes else "",
        f"<details><summary>Configuration</summary><pre>{escape(to_toml(config))}</pre></details>",
    ]
    path = folder / NAME
    write_page(path, title, "\n".join(part for part in parts if part))
    return path


def headline(advice: Advice) -> str:
    """The advice in a few words."""
    if advice.candidate is None:
        return "The probe could not tell"
    return "Keep your settings" if advice.candidate.name == YOURS else f"Train with {advice.candidate.name}"


def _lead(plan: ProbePlan, found: Measured) -> str:
    ages = "1 age" if plan.updates == 1 else f"ages 0 to {plan.updates - 1}"
    return (
        f"The run trains on completions at {ages}, counted in updates since they were sampled. Measured: {found.of} groups, "
        f"of which {found.groups} teach, with completions of {found.mean_length:.0f} tokens on average and a mean reward of "
        f"{found.reward:.2f}, at ages {', '.join(str(age.age) for age in found.ages)}."
    )


def settings(candidate: Candidate) -> dict[str, object]:
    """The fields of [algorithm] that a run takes from the probe; none where its own are kept."""
    return {} if candidate.name == YOURS else candidate.settings()


def _settings(advice: Advice, folder: Path) -> str:
    if advice.candidate is None or advice.candidate.name == YOURS:
        return ""
    text = tomli_w.dumps({"algorithm": settings(advice.candidate)})
    return f"<pre>{escape(text)}</pre><p>gspo train CONFIG.toml --from-probe {escape(folder)} takes these settings.</p>"


def _tiles(found: Measured) -> str:
    first, last = found.ages[0], found.ages[-1]
    cells = [
        ("Noise floor", f"{found.floor['ratio/noise_floor']:.1e}", "spread of the completion's ratio before any update"),
        (
            f"Spread at age {last.age}",
            _number(last.ratios["sampler"]["sd_completion"], ".1e"),
            "of the completion's log ratio",
        ),
        (f"Tail index at age {last.age}", _number(last.ratios["sampler"]["tail"], ".1f"), "of the token's log ratio"),
        (f"Effective sample at age {last.age}", _number(last.ratios["sampler"]["ess"], ".0%"), "of the token weights"),
    ]
    if last.volatility is not None and last is not first:
        cells.append((f"Experts changed at age {last.age}", f"{last.volatility:.1%}", "of pi_old's choices"))
    tiles = "".join(
        f'<div class="tile"><span>{escape(name)}</span><b>{escape(value)}</b><small>{escape(note)}</small></div>'
        for name, value, note in cells
    )
    return f'<div class="tiles">{tiles}</div>'


def _number(value: float | None, form: str) -> str:
    return "–" if value is None or not math.isfinite(value) else format(value, form)


def _span(value: Span, form: str = ".3f") -> str:
    return f"{value.value:{form}} [{value.low:{form}}, {value.high:{form}}]" if math.isfinite(value.value) else ""


def _lines(lines: Sequence[Standing]) -> str:
    head = (
        "candidate", "update", f"minus {YOURS}", "direction", "signal to noise", "largest group", "clipped, A < 0",
        "clipped, A > 0", "numerics",
    )  # fmt: skip
    rows = [
        (
            line.name,
            _span(line.update),
            "" if line.name == YOURS else _span(line.against, "+z.3f"),
            _span(line.direction, ".2f"),
            _span(line.noise, ".2f"),
            _number(line.largest, ".0%"),
            f"{line.low:.1%}",
            f"{line.high:.1%}",
            f"{line.numerics:.1%}",
        )
        for line in lines
    ]
    return table(head, rows)


def _ages(found: Measured) -> str:
    head = (
        "age",
        "read as",
        "spread, token",
        "spread, completion",
        "drift",
        "KL, nats a token",
        "tail index",
        "beyond 2x",
        "ess",
    )
    rows = []
    for age in found.ages:
        for name, told in age.ratios.items():
            row = [_number(told[key], ".1e") for key in ("sd_token", "sd_completion", "drift", "kl")]
            row += [_number(told["tail"], ".1f"), _number(told["beyond_2x"], ".2%"), _number(told["ess"], ".1%")]
            rows.append((str(age.age), name, *row))
    return table(head, rows)
