"""The report of a run: one HTML file that needs nothing else, for light and dark pages, screens and phones.

Reads what a run folder holds. Anyone may have written there: whatever comes from a file goes through `escape`.
"""

from __future__ import annotations

import base64
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from html import escape as html_escape
from pathlib import Path
from typing import TYPE_CHECKING, Any
from warnings import warn

import tomli_w

from gspo.report import numbers, samples
from gspo.report.events import sandbox, warnings
from gspo.report.read import read_lines, read_run, run_names
from gspo.report.summary import RunSummary, get, headline, lead, origin, tell, tiles
from gspo.safe import own_folder, replace_file, visible, without_secrets

if TYPE_CHECKING:
    from gspo.report.plots import Drawn

FIRST = ("accuracy", "reward", "loss")  # figures that come first
NEXT = ("completions", "reward_parts", "length", "grad_norm")  # those that come beside one that would stand alone


def write_report(run_dirs: Sequence[str | Path]) -> Path:
    """Draw the figures and write the report into the first run folder; returns its path.

    One run gives `report.html`, several in the same figures `comparison.html`. Raises ValueError where a folder has no
    metrics, or where its `figures` is a link.
    """
    from gspo.report import plots  # half a second, which ranks that write no report need not take

    folders = [Path(folder) for folder in run_dirs]
    if not folders:
        raise ValueError("gspo report: name at least one run folder")
    runs = [read_run(folder, name) for folder, name in zip(folders, run_names(folders))]
    own_folder(folders[0] / "figures")
    drawn = plots.draw(folders)
    settings, texts = zip(*map(_settings, folders))
    told = [tell(folder, run, table) for folder, run, table in zip(folders, runs, settings)]
    if len(runs) == 1:
        title, body = _report(folders[0], told[0], drawn, texts[0])
    else:
        title, body = _comparison(folders, told, drawn, texts)
    path = folders[0] / ("report.html" if len(runs) == 1 else "comparison.html")
    write_page(path, title, body)
    return path


def report_of(folder: Path) -> None:
    """The report of a run that is over, if it has anything to tell. Where it cannot be written, a warning is worth less than
    what was trained.
    """
    if next(read_lines(folder / "metrics.jsonl"), None) is None:
        return
    try:
        write_report([folder])
    except (OSError, ValueError) as error:
        warn(
            f"the report could not be written ({error}); all else is there: mend that, then `gspo report {folder}`",
            stacklevel=3,
        )


@contextmanager
def reported(*but: type[BaseException]) -> Iterator[list[Path]]:
    """Writes the reports of the runs whose folders are put into the list, once they are closed: also where an error ended
    them, or a page of before would go on telling of success. but: errors after which none is written, since the run
    goes on in another process, or whoever ended it wants it at once.
    """
    folders: list[Path] = []
    try:
        yield folders
    except BaseException as error:
        if not isinstance(error, but):
            with suppress(Exception):  # it is the run's own error that counts
                for folder in folders:
                    report_of(folder)
        raise
    for folder in folders:
        report_of(folder)


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
    replace_file(path, page.encode())


def escape(text: Any) -> str:
    """`text` as HTML that cannot be markup; control characters become visible."""
    return html_escape(visible(text), quote=True)


def _report(folder: Path, told: RunSummary, drawn: list[Drawn], text: str) -> tuple[str, str]:
    title = headline(told)
    names = [d.name for d in drawn]
    first = [name for name in FIRST if name in names]
    first += [name for name in NEXT if name in names][: max(0, 2 - len(first))]
    shown, diagnostics = ([d for d in drawn if (d.name in first) == begin] for begin in (True, False))
    warned = warnings(folder, told.run)
    below = f" {numbers.plural(len(warned), 'warning')} below." if warned else ""
    ran = sandbox(folder)
    programs = f" {ran[:1].upper()}{ran[1:]}." if ran else ""
    parts = [
        f'<p class="origin">{escape(origin(told))}</p>',
        f"<h1>{escape(title)}</h1>",
        f'<div class="failure">{escape(why)}</div>' if (why := told.error or told.collapsed) else "",
        f'<p class="lead">{escape(lead(told) + programs + below)}</p>',
        _tiles(told),
        f'<div class="figures first">{"".join(map(figure, shown))}</div>' if shown else "",
        _warnings(warned),
        samples.before_and_after(folder, escape),
        f'<h2>Diagnostics</h2><div class="figures">{"".join(map(figure, diagnostics))}</div>' if diagnostics else "",
        samples.coloured(folder / "rollouts.jsonl", escape),
        _configuration("Configuration", text),
    ]
    return f"{told.run.name}: {title}", "\n".join(p for p in parts if p)


def _comparison(folders: list[Path], told: list[RunSummary], drawn: list[Drawn], texts: Sequence[str]) -> tuple[str, str]:
    title = f"{len(told)} runs compared"
    columns = ("run", "algorithm", "steps", "time", "held-out accuracy", "reward", "clipped", "completion length")
    rows = []
    for one in told:
        run = one.run
        cells = (
            run.name + (" (failed)" if one.error else " (collapsed)" if one.collapsed else ""),
            "supervised" if one.supervised else get(one.config, "algorithm", "name") or "",
            str(numbers.steps(run)),
            numbers.duration(numbers.seconds(run)),
            numbers.accuracy(run) + numbers.last_interval(run),
            numbers.change(numbers.ends(run, "reward"), "{:.2f}"),
            numbers.percent(numbers.mean(run, "clip_ratio/tokens")),
            numbers.change(numbers.ends(run, "completions/mean_length"), "{:.0f}"),
        )
        rows.append(cells)
    warned = [(one.run.name, text) for one, folder in zip(told, folders) for text in warnings(folder, one.run)]
    parts = [
        f"<h1>{title}</h1>",
        table(columns, rows),
        '<p class="note">Held-out accuracy: first and last evaluation, with the 95 % interval of the last. Reward and '
        "completion length: means of the first and the last steps. Clipped: share of the tokens, mean over the run.</p>",
        f'<h2>Figures</h2><div class="figures">{"".join(map(figure, drawn))}</div>',
        _warnings([f"{name}: {text}" for name, text in warned]),
        *(_configuration(f"Configuration of {one.run.name}", text) for one, text in zip(told, texts)),
    ]
    return title, "\n".join(p for p in parts if p)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as HTML, which scrolls sideways on a narrow page. An empty cell gets a dash."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell) or '–'}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        '<p class="scroll-hint">Scroll the table sideways to see all columns.</p>'
        f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def _tiles(told: RunSummary) -> str:
    cells = (
        f'<div class="tile"><span>{escape(name)}</span><b>{escape(value)}</b><small>{escape(note)}</small></div>'
        for name, value, note in tiles(told)
    )
    whole = "".join(cells)
    return f'<div class="tiles">{whole}</div>' if whole else ""


def _warnings(texts: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(text)}</li>" for text in texts)
    return f'<div class="warnings"><h2>Warnings</h2><ul>{items}</ul></div>' if texts else ""


def figure(drawn: Drawn) -> str:
    """A drawn figure as HTML, both renderings within."""
    light, dark = ("data:image/png;base64," + base64.b64encode(p.read_bytes()).decode() for p in (drawn.light, drawn.dark))
    return (
        f'<figure><picture><source media="(prefers-color-scheme: dark)" srcset="{dark}">'
        f'<img src="{light}" alt="{escape(drawn.title)}. {escape(drawn.caption)}"></picture>'
        f"<figcaption>{escape(drawn.caption)}</figcaption></figure>\n"
    )


def _configuration(title: str, text: str) -> str:
    return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>" if text else ""


def _settings(folder: Path) -> tuple[dict[str, Any], str]:
    """The settings of a run, and their text without secrets: as the file has it, or written again where it has some."""
    try:
        text = (folder / "config.toml").read_text(encoding="utf-8")
        settings = tomllib.loads(text)
    except (OSError, ValueError, RecursionError):  # what is no TOML may be anything
        return {}, ""
    hidden = without_secrets(settings)
    return settings, text if hidden == settings else tomli_w.dumps(hidden)
