"""The command line. Imports nothing heavy until a command runs."""

from __future__ import annotations

import argparse
import dataclasses
import os
import select
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import UnsupportedOperation
from pathlib import Path
from typing import Any, NoReturn

from gspo import __version__
from gspo.config.field import SEEDS
from gspo.config.files import from_home, load, to_toml
from gspo.config.names import nearest_key
from gspo.safe import visible, without_logins

FIELDS = "Set any configuration field with --section.key VALUE. `gspo config` lists all fields with meaning and unit."


class Parser(argparse.ArgumentParser):
    """A parser whose errors are ValueErrors, as all bad input is."""

    def error(self, message: str) -> NoReturn:
        """Raises ValueError that names the help to read."""
        raise ValueError(f"{message.removeprefix('argument ')}; see `{self.prog} --help`")


OUT_OF_MEMORY = (
    "lower train.micro_batch_tokens or sampler.batch_size, or set train.gradient_checkpointing = true; then continue from "
    "the last checkpoint with `--resume`"
)


def place(path: str) -> Path:
    """A path of the command line; shells leave the ~ of `--dir=~/runs` to programs."""
    return Path(from_home("path", path))


def parser() -> Parser:
    """The commands and their options."""
    top = Parser(
        prog="gspo",
        description="Train language models with Group Sequence Policy Optimization (GSPO).",
        epilog="Start with `gspo demo`: it trains a tiny mixture of experts in under four minutes on a CPU.",
    )
    top.add_argument("--version", action="version", version=f"gspo {__version__}")
    top.add_argument("--debug", action="store_true", help="show the full traceback of an error")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str, config: str | None = None, fields: bool = True) -> argparse.ArgumentParser:
        help = text.replace("%", "%%")  # argparse formats this one only
        subparser = commands.add_parser(
            name, help=help, description=text, epilog=FIELDS if fields else None, allow_abbrev=False
        )
        subparser.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        if config:
            subparser.add_argument(
                "config", metavar="CONFIG.toml", nargs=config if config == "?" else None, help="configuration file"
            )
        return subparser

    _running(command)
    _reading(command)
    return top


def _running(command: Callable[..., argparse.ArgumentParser]) -> None:
    """The commands that take a configuration or a study."""
    for name, text in (
        ("train", "train a model with GSPO or another algorithm, such as GRPO or PPO"),
        ("sft", "fine-tune a model on prompts with completions to imitate (supervised, for a cold start)"),
        ("serve", "serve a model to agents at an OpenAI-compatible endpoint, and train it on what they return"),
    ):
        subparser = command(name, text, "1")
        subparser.add_argument("--resume", action="store_true", help="continue from the last checkpoint in the run folder")
        subparser.add_argument(
            "--allow", action="append", default=[], metavar="SECTION.KEY",
            help="with --resume: a setting that may differ from the run's own, such as optimizer.lr; repeatable",
        )  # fmt: skip
    subparser = command("eval", "evaluate a model on held-out prompts: accuracy with a 95 % interval", "1")
    subparser.add_argument("--out", type=place, metavar="FILE", help="write each completion to this .jsonl file")
    subparser = command("compare", "compare algorithms on equal terms: over settings and seeds, with intervals and verdicts")
    subparser.add_argument("study", metavar="STUDY.toml", help="study file")
    subparser.add_argument("--dir", type=place, help="folder of the study (default: runs/NAME)")
    subparser.add_argument(
        "--only", default="*", metavar="PATTERN", help="cells to run, as setting/variant/seedN with * and ?"
    )
    subparser.add_argument("--dry-run", action="store_true", help="only list the cells")
    command("config", "print the whole configuration, with the meaning and unit of each field", "?")


def _reading(command: Callable[..., argparse.ArgumentParser]) -> None:
    """The commands that read what a run has left, and the demo."""
    subparser = command(
        "report", "write the report of a run with its figures, or one page that compares several runs", fields=False
    )
    subparser.add_argument("runs", nargs="+", metavar="RUN_DIR", help="run folders; the page is written into the first")
    subparser = command("export", "write the trained model of a run as a plain Hugging Face folder", fields=False)
    subparser.add_argument("run", type=place, metavar="RUN", help="run folder, checkpoint or model folder")
    subparser.add_argument("--out", type=place, metavar="DIR", help="where to (default: RUN/export)")
    subparser.add_argument("--merge", action="store_true", help="merge an adapter into its base model")
    subparser.add_argument("--push", metavar="REPO", help="send it to this repository of the Hugging Face Hub too")
    subparser = command(
        "demo", "train a tiny mixture of experts with GSPO until it works answers out instead of guessing", fields=False
    )
    subparser.add_argument("--agent", action="store_true", help="run the demo of agents: conversations with a tool")
    subparser.add_argument("--dir", type=place, help="run folder (default: runs/demo, runs/demo-agent)")
    subparser.add_argument("--seed", type=seed, default=0, help="seed of the whole demo (default: %(default)s)")
    subparser.add_argument("--resume", action="store_true", help="continue a demo that was stopped")


def take_fields(argv: list[str]) -> tuple[list[str], dict[str, str]]:
    """Takes `--section.key VALUE` and `--section.key=VALUE` out of the words of a command line."""
    plain_words: list[str] = []
    fields: dict[str, str] = {}
    words = iter(argv)
    for word in words:
        key, equals, value = word.partition("=")
        if not key.startswith("--") or "." not in key:
            plain_words.append(word)
            continue
        if not equals:
            value = next(words, "--")
            if value.startswith("--"):
                raise ValueError(f"{key}: a value is missing (one that begins with -- is given as {key}=VALUE)")
        fields[key[2:]] = value
    return plain_words, fields


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


def main(argv: list[str] | None = None) -> int:
    """Runs one command. Returns the exit status: 0, 1 for a failed run, 2 for bad input, 130 when interrupted.

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
        if unknown and not unknown[0].startswith("-"):
            raise ValueError(f"{unknown[0]}: unexpected argument; see `gspo {arguments.command} --help`")
        if unknown:
            guess = nearest_key(unknown[0].lstrip("-")) or f"; see `gspo {arguments.command} --help`"
            raise ValueError(f"{unknown[0]}: unknown option; fields are given as --section.key VALUE{guess}")
        if fields and arguments.command in ("report", "export", "demo"):
            raise ValueError(f"--{next(iter(fields))}: `gspo {arguments.command}` takes no configuration fields")
        begun = arguments, fields
        try:
            with short_warnings():
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


def seed(text: str) -> int:
    """A seed of the command line. Raises ArgumentTypeError, which argparse shows."""
    try:
        number = int(text)
    except ValueError:  # also for more digits than Python reads
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: must be a whole number from 0 to {SEEDS}") from None
    if not 0 <= number <= SEEDS:
        raise argparse.ArgumentTypeError(f"{text[:40]!r}: must be a whole number from 0 to {SEEDS}")
    return number


def way_on(arguments: argparse.Namespace, fields: dict[str, str]) -> str:
    """How to go on with a command that was interrupted, in words after "interrupted"."""
    if arguments.command == "compare":
        return "; the same command goes on with what is left"
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


def run(arguments: argparse.Namespace, fields: dict[str, str]) -> int:
    """One parsed command."""
    if arguments.command == "report":
        from gspo.report.page import write_report

        print(visible(write_report(arguments.runs)))
        return 0
    if arguments.command == "export":
        from gspo.build.export import export

        print(f"model   {export(arguments.run, arguments.out, arguments.merge, arguments.push)}")
        return 0
    if arguments.command == "demo":
        from gspo.demo import stages

        kind = "agent" if arguments.agent else "completion"
        return stages.play(demo_folder(arguments), arguments.seed, arguments.resume, kind)
    if arguments.command == "compare":
        from gspo.study.compare import compare

        return compare(arguments.study, arguments.dir, arguments.only, arguments.dry_run, fields)
    config = load(arguments.config, fields)
    if arguments.command == "config":
        from gspo.learner.algorithm import resolve

        config = dataclasses.replace(config, algorithm=resolve(config.algorithm)[1])
        print(to_toml(config, comments=True, secrets=True), end="")
        return 0
    if arguments.command == "serve":
        return serve(config, arguments.resume, arguments.allow)
    from gspo import api

    if arguments.command == "eval":
        return evaluate(config, arguments.out)
    call = api.train if arguments.command == "train" else api.sft
    result = call(config=config, resume=arguments.resume, allow=arguments.allow)
    print(visible(f"model   {result.folder / 'model'}" if result.finished else f"stopped {result.folder}"))
    report = result.folder / "report.html"
    if report.is_file():
        print(visible(f"report  {report}"))
    return 0 if result.finished else 130


def serve(config: Any, resume: bool, allow: Sequence[str] = ()) -> int:
    """`gspo serve`: until Ctrl-C, which saves what was trained."""
    from gspo.runs.checkpoint import stop_signals
    from gspo.serving.start import serve

    with serve(config=config, resume=resume, allow=allow) as model, stop_signals(lambda text: None) as stop:
        # For the shell that the agent runs in; the key is of this run alone.
        print(f"export OPENAI_BASE_URL={model.base_url}\nexport OPENAI_API_KEY={model.api_key}", flush=True)
        print(f"model {model.name!r}; Ctrl-C ends and saves", file=sys.stderr, flush=True)
        while not stop.asked:
            time.sleep(0.1)
    print(f"model   {model.folder / 'model'}")
    return 0


def evaluate(config: Any, out: Path | None) -> int:
    """`gspo eval`: prints the metrics, and writes the completions."""
    from gspo import api
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
    failed, count = metrics["eval/failed"], sum(len(group.rollouts) for group in groups)
    note = f"; {failed:.0f} of {count} completions were not scored and count as wrong" if failed else ""
    print(f"accuracy {metrics['eval/accuracy']:.4f}  (95 % interval {low:.4f} to {high:.4f}){note}")
    for name, value in sorted(metrics.items()):
        if not name.startswith("eval/accuracy"):
            print(f"{name.removeprefix('eval/')} {value:.4g}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
