"""`gspo.serve`: a context manager that serves a model at an endpoint."""

from __future__ import annotations

import os
import secrets
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from gspo.agents.chat import Chat
from gspo.assembly import assemble
from gspo.assembly.call_inputs import CallInputs, Source, configured
from gspo.assembly.samplers import speaker_of
from gspo.config.commands import check_command
from gspo.config.schema import Config
from gspo.data.chat_template import Encoder
from gspo.distributed.environment import KEY
from gspo.report.page import reported
from gspo.runs import checkpoint
from gspo.serving.connections import address_of, listener
from gspo.serving.model import COLLAPSED, ServedModel, endpoint
from gspo.training.state import save


def serve(
    model: Any = None,
    *,
    tokenizer: Any = None,
    config: Source = None,
    resume: bool = False,
    allow: Collection[str] = (),
    **sections: Any,
) -> Serving:
    """Serves a model at an OpenAI-compatible endpoint, where agents query it, and trains it on their trajectories:

        async with gspo.serve("path/to/model", log={"dir": "runs/agent"}) as model:
            client = model.openai_client()
            ...
            await model.train(groups)

    Arguments as in gspo.train; no task is needed. On exit, a running step is finished, and a checkpoint and the model are
    written; only the checkpoint if the guard has ended the run (guard.action). Raises ValueError for an invalid
    configuration, before anything starts.
    """
    resolved = configured(config, sections, model, tokenizer, resume=resume)
    check_command(resolved, "serve")
    return Serving(_served(resolved, resume, CallInputs(model, tokenizer), allow))


class Serving:
    """A context manager, sync or async, that gives a ServedModel."""

    def __init__(self, context: AbstractContextManager[ServedModel]) -> None:
        self._context = context

    def __enter__(self) -> ServedModel:
        return self._context.__enter__()

    def __exit__(self, *exception: Any) -> None:
        self._context.__exit__(*exception)

    async def __aenter__(self) -> ServedModel:
        return self.__enter__()

    async def __aexit__(self, *exception: Any) -> None:
        self.__exit__(*exception)


@contextmanager
def _served(config: Config, resume: bool, given: CallInputs, allow: Collection[str]) -> Iterator[ServedModel]:
    with (
        listener(config.serve) as listening,
        reported() as over,  # exits last, when everything is written
        assemble.serving(config, resume, given, allow) as (run, source, hf),
        speaker_of(run.config, run.sampler) as completer,
    ):
        chat = Chat(completer, Encoder(hf.tokenizer, run.config.task), run.sampling, hf.context_length)
        begun, key = run.step, os.environ.pop(KEY, None) or secrets.token_urlsafe(24)
        model = ServedModel(run, source, chat, f"http://{address_of(listening)[0]}/v1", key)
        try:
            with endpoint(model, listening):
                yield model
        finally:
            # A lost rank: the launcher restarts the run from its last checkpoint. Not ended: interrupted twice, in a step.
            if model.lost is None and model.ended:
                over.append(run.log.folder.path)
                if run.step > begun:
                    save(run)
                if run.collapsed:
                    run.log.note(COLLAPSED)
                else:
                    checkpoint.save_model(run.log.folder, run.learner.publish(run.step).save, hf.model)
