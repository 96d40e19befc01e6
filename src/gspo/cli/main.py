"""The entry point: runs one command, and reports an error in one line."""

from __future__ import annotations

import logging
import os
import select
import sys
import traceback
from io import UnsupportedOperation

from gspo.cli.arguments import take_fields
from gspo.cli.commands import parse
from gspo.cli.terminal import level_of, terminal_log
from gspo.config.names import RESUME
from gspo.distributed.environment import LOST, SHORT, rank_and_world_size
from gspo.runs.signals import interruptible

logger = logging.getLogger(__name__)
OUT_OF_MEMORY = (
    "lower train.micro_batch_tokens or sampler.batch_size, or set train.gradient_checkpointing = true; then continue from "
    "the last checkpoint with `--resume`"
)
INCURABLE = "invalid device", "no kernel image", "device-side assert"  # CUDA errors that another process meets too
OF_RANKS = {"RankLost": LOST, "OutOfMemory": SHORT}  # by name, since their modules import torch


def main(argv: list[str] | None = None) -> int:
    """Runs one command. Returns the exit status: 0, 1 for a failed or collapsed run, 2 for bad input, 130 when interrupted.
    Ends silently if stdout has no reader any more (`| head`). --debug changes no status.
    """
    argv = sys.argv[1:] if argv is None else argv
    try:
        with terminal_log(level_of(argv)):
            return _run(argv)
    finally:
        stdout_closed()


def stdout_closed() -> bool:
    """Whether stdout has no reader any more. If so, the rest of the output is dropped, also when Python exits."""
    if sys.stdout is None:  # closed before Python started
        return True
    try:
        sys.stdout.flush()
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        if not poll.poll(0):
            return False
    except UnsupportedOperation:
        return False  # not a file
    except OSError:
        pass
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return True


def _run(argv: list[str]) -> int:
    debug, hint, status = "--debug" in argv, "", 0
    try:
        words, fields = take_fields(argv)
        command, arguments = parse(words, fields)
        debug, arguments.words = arguments.debug, argv
        try:
            with interruptible():
                status = command.run(arguments, fields)
        except SystemExit as error:  # user code that exits must not look like a normal end
            raise RuntimeError(f"a call of sys.exit({error.code!r}) that is none of gspo's ended the run") from error
        except KeyboardInterrupt:
            hint = command.resume_hint(arguments, fields)
            raise
        print(end="", flush=True)  # also works without a stdout
        return status
    except KeyboardInterrupt:
        logger.info(f"interrupted{hint}")
        return 130
    except (ValueError, RuntimeError, OSError, MemoryError) as error:
        if isinstance(error, BrokenPipeError) and stdout_closed():
            return status  # the reader has closed the pipe
        if debug:
            traceback.print_exc()
        if type(error).__name__ == "OutOfMemoryError":  # torch's; by name, to avoid its import
            error = RuntimeError(f"the GPU is out of memory: {OUT_OF_MEMORY}")
        if isinstance(error, MemoryError):
            error = RuntimeError(f"this machine is out of memory ({error}): {OUT_OF_MEMORY}")
        if type(error).__name__ == "AcceleratorError":  # torch's for a GPU that fails; another process may do better
            first = str(error).partition("\n")[0]
            if not any(words in first for words in INCURABLE):
                logger.error(f"the GPU failed ({first}): {RESUME} goes on from the last checkpoint")
                return LOST if rank_and_world_size()[1] > 1 else 1
            error = RuntimeError(first)
        logger.error(error)
        return 2 if isinstance(error, ValueError) else 1
    except Exception as error:
        if type(error).__name__ not in OF_RANKS:  # any other error is a bug in gspo
            raise
        if debug:
            traceback.print_exc()
        logger.error(error)
        return OF_RANKS[type(error).__name__]


if __name__ == "__main__":
    sys.exit(main())
