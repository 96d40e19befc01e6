"""The command line. Imports nothing heavy until a command runs."""

from __future__ import annotations

import argparse
import dataclasses
import os
import select
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import UnsupportedOperation
from pathlib import Path
from typing import Any

from gspo.config.files import from_dict, load, to_dict, to_toml
from gspo.distributed.environment import LOST, SHORT
from gspo.launch.processes import importing
from gspo.options import OF_A_BENCHMARK, check_typed, parser, refuse, take_fields
from gspo.safe import visible, without_logins

OUT_OF_MEMORY = (
    "lower train.micro_batch_tokens or sampler.batch_size, or set train.gradient_checkpointing = true; then continue from "
    "the last checkpoint with `--resume`"
)
OF_RANKS = {"RankLost": LOST, "OutOfMemory": SHORT}  # errors by name, since they are in modules that import torch


@contextmanager
def short_warnings() -> Iterator[None]:
    """Prints gspo's own warnings in one line, without the place in the source. A run's log takes over what comes later."""
    with warnings.catch_warnings():
        show = warnings.showwarning

        def note(message: Any, category: type[Warning], filename: str, *rest: Any, **more: Any) -> None:
            if issubclass(category, UserWarning) and Path(__file__).parent in Path(filename).parents:
                print(f"gspo: warning: {visible(without_logins(str(message)))}", file=sys.stderr)
            else:
                show(message, category, filename, *rest, **more)

        warnings.showwarning = note
        yield


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP end a command as Ctrl-C does, so that it ends what it has started, and clears up. SIGHUP stays
    ignored where it is (nohup).
    """
    heard: list[int] = []

    def hear(number: int, frame: Any) -> None:
        if heard and number == signal.SIGHUP:  # the kernel and the shell may each send one
            return
        heard.append(number)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield
        return
    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, hear)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


def main(argv: list[str] | None = None) -> int:
    """Runs one command. Returns the exit status: 0, 1 for a failed or collapsed run, 2 for bad input, 130 when interrupted.

    Where nobody reads the output any more (`| head`), it ends without a word.
    """
    try:
        return told(sys.argv[1:] if argv is None else argv)
    finally:
        unread()


def unread() -> bool:
    """Whether nobody reads the output any more. Then what is left of it goes nowhere, also when Python ends."""
    if sys.stdout is None:  # it was closed before Python began
        return True
    try:
        sys.stdout.flush()
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        if not poll.poll(0):
            return False
    except UnsupportedOperation:
        return False  # it is no file
    except OSError:
        pass
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


def told(argv: list[str]) -> int:
    """Runs one command and tells in one line what went wrong. Returns the exit status."""
    debug, begun = False, None
    try:
        words, fields = take_fields(argv)
        arguments, unknown = parser().parse_known_args(words)
        debug = arguments.debug
        if unknown:
            refuse(unknown[0], arguments.command)
        if fields and arguments.command in ("report", "export", "demo"):
            raise ValueError(f"--{next(iter(fields))}: `gspo {arguments.command}` takes no configuration fields")
        arguments.words = argv
        begun = arguments, fields
        try:
            with short_warnings(), interruptible():
                status = run(arguments, fields)
        except SystemExit as error:  # code that a run calls must not pass for its end
            raise RuntimeError(f"a call of sys.exit({error.code!r}) that is none of gspo's ended the run") from error
        print(end="", flush=True)  # also where there is no stdout at all
        return status
    except KeyboardInterrupt:
        print(visible(f"gspo: interrupted{way_on(*begun) if begun else ''}"), file=sys.stderr)
        return 130
    except (ValueError, RuntimeError, OSError) as error:
        if isinstance(error, BrokenPipeError) and unread():
            return 0  # whoever read the output had enough of it
        if debug:
            raise
        if type(error).__name__ == "OutOfMemoryError":  # torch's, without importing torch for it
            error = RuntimeError(f"the GPU is out of memory: {OUT_OF_MEMORY}")
        print(f"gspo: error: {visible(without_logins(str(error)))}", file=sys.stderr)
        return 2 if isinstance(error, ValueError) else 1
    except Exception as error:
        if type(error).__name__ not in OF_RANKS:  # another error is one of gspo's own
            raise
        print(f"gspo: {visible(without_logins(str(error)))}", file=sys.stderr)
        return OF_RANKS[type(error).__name__]


def way_on(arguments: argparse.Namespace, fields: dict[str, str]) -> str:
    """How to go on with a command that was interrupted, in words after "interrupted"."""
    if arguments.command == "compare" or (arguments.command == "eval" and arguments.benchmark is not None):
        return "; the same command goes on with what is left"
    if arguments.command == "probe":
        told = (arguments.dir / "probe.json").exists()
        return f"; what was measured until then is in {arguments.dir}" if told else "; nothing was measured"
    if arguments.command == "demo":
        folder = demo_folder(arguments)
        begun = folder.with_name(f"{folder.name}-cold-start").exists()
        return f"; start it again {'with' if begun else 'without'} --resume"
    if arguments.command not in ("train", "sft", "serve"):
        return ""
    try:
        folder = Path(load(arguments.config, fields).log.dir)
    except ValueError:  # it was changed in the meantime
        return ""
    if not (folder / "config.toml").exists():
        return " before anything was begun: start it again without --resume"
    from gspo.runs import checkpoint

    return f"; {checkpoint.way_on(folder / 'checkpoints')}"


def demo_folder(arguments: argparse.Namespace) -> Path:
    """Where `gspo demo` runs."""
    return Path(arguments.dir or ("runs/demo-agent" if arguments.agent else "runs/demo"))


def follow(config: Config) -> None:
    """Takes part in the run as a rank that does not lead."""
    with importing():
        from gspo.assembly import rank
    rank.follow(config.scale)


def run(arguments: argparse.Namespace, fields: dict[str, str]) -> int:
    """One parsed command."""
    if arguments.command == "report":
        from gspo.report.page import write_report

        print(visible(write_report(arguments.runs)))
        return 0
    if arguments.command == "export":
        from gspo.assembly.export import export

        print(f"model   {export(arguments.run, arguments.out, arguments.merge, arguments.push)}")
        return 0
    if arguments.command == "demo":
        with importing():
            from gspo.demo import stages
        kind = "agent" if arguments.agent else "completion"
        return stages.play(demo_folder(arguments), arguments.seed, arguments.resume, kind)
    if arguments.command == "compare":
        from gspo.compare.compare import compare

        return compare(arguments.study, arguments.dir, arguments.only, arguments.dry_run, fields)
    if arguments.command == "eval" and on_a_benchmark(arguments):
        with importing():
            from gspo.evaluate.run import evaluate as evaluate_on
        return evaluate_on(options_of(arguments), fields)
    check_typed(fields, arguments.command)
    config = configured(arguments, fields)
    if arguments.command == "probe":
        return measure(config, arguments)
    if arguments.command in ("train", "sft", "serve"):
        from gspo.launch.launch import begun_before, take_part

        status = take_part(config, arguments.words, follow)
        if status is not None:
            return status
        arguments.resume |= begun_before(config)
    if arguments.command == "plan":
        return predict(config, arguments)
    if arguments.command == "config":
        return show(config)
    if arguments.command == "serve":
        return serve(config, arguments.resume, arguments.allow)
    with importing():
        from gspo import api
    if arguments.command == "eval":
        return evaluate(config, arguments.out)
    call = api.train if arguments.command == "train" else api.sft
    result = call(config=config, resume=arguments.resume, allow=arguments.allow)
    print(visible(f"model   {result.folder / 'model'}" if result.finished else f"stopped {result.folder}"))
    report = result.folder / "report.html"
    if report.is_file():
        print(visible(f"report  {report}"))
    return 0 if result.finished else 1 if result.collapsed else 130


def on_a_benchmark(arguments: argparse.Namespace) -> bool:
    """Whether `gspo eval` is about a benchmark. Raises ValueError for words that have no effect."""
    if arguments.benchmark is not None and arguments.out is not None:
        raise ValueError("--out: has no effect beside --benchmark, which keeps its replies in --dir; leave it out")
    for name in OF_A_BENCHMARK:
        if arguments.benchmark is None and getattr(arguments, name):
            raise ValueError(f"--{name.replace('_', '-')}: is for a benchmark: name one with --benchmark, or leave it out")
    return arguments.benchmark is not None


def options_of(arguments: argparse.Namespace) -> Any:
    """The words of `gspo eval --benchmark`."""
    from gspo.evaluate.settings import Options

    of_source = [(name, getattr(arguments, name)) for name in ("data", "name", "split", "release", "window")]
    return Options(
        model=arguments.config,
        benchmark=arguments.benchmark,
        dir=arguments.dir,
        preset=arguments.preset,
        of_source=tuple((name, value) for name, value in of_source if value is not None),
        url=arguments.url or "",
        key_variable=arguments.key_variable or "",
        refused_as_wrong=arguments.refused_as_wrong,
        against=arguments.against,
        contests=arguments.contests,
        as_published=arguments.as_published,
    )


def configured(arguments: argparse.Namespace, fields: dict[str, str]) -> Any:
    """The configuration of a command, with what a probe recommends where it is asked for."""
    folder = getattr(arguments, "from_probe", None)
    if folder is None:
        return load(arguments.config, fields)
    from gspo.probe.source import recommended

    return from_dict(recommended(folder, to_dict(load(arguments.config, fields)), fields))


def show(config: Any) -> int:
    """`gspo config`: prints the settings of a run, once they are known to fit together."""
    from gspo.config.checks import check_queries
    from gspo.data.splits import check_sources
    from gspo.learner.algorithm import resolve

    check_queries(config)
    check_sources(config.task, config.stage, config.refresh)
    print(to_toml(dataclasses.replace(config, algorithm=resolve(config.algorithm)[1]), comments=True, secrets=True), end="")
    return 0


def measure(config: Any, arguments: argparse.Namespace) -> int:
    """`gspo probe`: prints what it recommends."""
    with importing():
        from gspo.probe.run import ProbeOptions, probe
    options = ProbeOptions(arguments.dir, arguments.groups, arguments.fresh, arguments.ages, arguments.warm)
    page, words = probe(config, options)
    print(visible("\n".join([*words, f"page    {page}"])))
    return 0


def predict(config: Any, arguments: argparse.Namespace) -> int:
    """`gspo plan`: prints what the run would need."""
    with importing():
        from gspo.plan.cost_model import Machines
        from gspo.plan.plan import Lengths, told
    lengths = Lengths(arguments.prompt_tokens, arguments.completion_tokens)
    rates = arguments.flops * 1e12, arguments.bandwidth * 1e9, arguments.local_bandwidth * 1e9
    text, fits = told(config, lengths, Machines(*rates, arguments.machine), arguments.memory)
    print(visible(text))
    return 0 if fits else 1


def serve(config: Any, resume: bool, allow: Sequence[str] = ()) -> int:
    """`gspo serve`: until Ctrl-C, which saves what was trained, or until the guard ends the run."""
    with importing():
        from gspo.runs.checkpoint import stop_signals
        from gspo.serving.start import serve
    with serve(config=config, resume=resume, allow=allow) as model, stop_signals(lambda text: None) as stop:
        # For the shell that the agent runs in; the key is of this run alone.
        print(f"export OPENAI_BASE_URL={model.base_url}\nexport OPENAI_API_KEY={model.api_key}", flush=True)
        print(f"model {model.name!r}; Ctrl-C ends and saves", file=sys.stderr, flush=True)
        while not (stop.asked or model.lost or model.collapsed):
            time.sleep(0.1)
        if model.lost is not None:  # this life of the ranks is over
            raise model.lost
    print(f"stopped {model.folder}" if model.collapsed else f"model   {model.folder / 'model'}")
    return int(model.collapsed)


def evaluate(config: Any, out: Path | None) -> int:
    """`gspo eval`: prints the metrics, and writes the completions."""
    from gspo import api
    from gspo.rollout.failures import cause, eval_errors
    from gspo.rollout.metrics import describe
    from gspo.runs.log import to_json

    if out is not None and out.exists():
        raise ValueError(f"--out {out}: exists already; give another name")
    try:
        (out or Path()).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out {out}: cannot be written: {error}") from None
    metrics, groups = api.evaluate(config=config)
    if out is not None:
        column = config.reward.answer_column
        with open(out, "wb") as file:
            file.writelines(to_json(describe(rollout, column)) for group in groups for rollout in group.rollouts)
    low, high = (metrics[f"eval/accuracy_{end}"] for end in ("low", "high"))
    print(f"model {config.model.path}")
    failed, errors = metrics["eval/failed"], eval_errors(groups)
    note = f"; {failed:.0f} of {len(errors)} completions were not scored and count as wrong" if failed else ""
    print(f"accuracy {metrics['eval/accuracy']:.4f}  (95 % interval {low:.4f} to {high:.4f}){note}")
    if failed:
        print(visible(cause(errors)))
    for name, value in sorted(metrics.items()):
        if not name.startswith("eval/accuracy"):
            print(f"{name.removeprefix('eval/')} {value:.4g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
