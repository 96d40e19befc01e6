"""`gspo serve`: serves a model at an OpenAI-compatible endpoint, and trains it on what agents return."""

from __future__ import annotations

import argparse
import logging
import time
from contextlib import suppress
from functools import partial

from gspo.cli.arguments import Command
from gspo.cli.train import add_arguments, configured, prepared, resume_hint, take_part
from gspo.launch.processes import importing

logger = logging.getLogger(__name__)


def run(arguments: argparse.Namespace, fields: dict[str, str]) -> int:
    """Serves until Ctrl-C, which saves the trained model, or until the guard ends the run."""
    config = prepared(configured(arguments, fields), arguments)
    status = take_part(config, arguments)
    if status is not None:
        return status
    with importing():
        from gspo.runs.signals import stop_signals
        from gspo.serving.start import serve
    served = serve(config=config, resume=arguments.resume, allow=arguments.allow)
    with served as model, stop_signals(lambda text: None) as stop:
        # For the agent's shell. The key is valid for this run only.
        print(f"export OPENAI_BASE_URL={model.base_url}\nexport OPENAI_API_KEY={model.api_key}", flush=True)
        logger.info(f"model {model.name!r}; Ctrl-C ends and saves")
        while not (stop.asked or model.lost or model.collapsed):
            time.sleep(0.1)
        if model.lost is not None:  # a rank was lost: the launcher restarts all ranks
            raise model.lost
    with suppress(BrokenPipeError):  # nobody reads it; the status counts
        print(f"stopped {model.folder}" if model.collapsed else f"model   {model.folder / 'model'}")
    return int(model.collapsed)


SERVE = Command(
    "serve",
    "serve a model to agents at an OpenAI-compatible endpoint, and train it on what they return",
    partial(add_arguments, short=("model",)),
    run,
    resume_hint=resume_hint,
)
