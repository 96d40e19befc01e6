"""`gspo.serve`: a context manager that serves a model at an endpoint."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack
from typing import Any

from gspo.assembly import assemble
from gspo.assembly.call_inputs import CallInputs, Source, configured
from gspo.config.commands import check_command
from gspo.config.schema import Config
from gspo.data.chat_template import Encoder
from gspo.report.page import reported
from gspo.runs import checkpoint
from gspo.serving.connections import listener
from gspo.serving.model import COLLAPSED, ServedModel, served
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
    resolved = configured(config, sections, model, tokenizer)
    check_command(resolved, "serve")
    return Serving(resolved, resume, CallInputs(model, tokenizer), allow)


class Serving:
    """A context manager, sync or async, that gives a ServedModel."""

    def __init__(self, config: Config, resume: bool, given: CallInputs, allow: Collection[str]) -> None:
        self.config, self.resume, self.given, self.allow = config, resume, given, allow
        self._stack = ExitStack()

    def __enter__(self) -> ServedModel:
        with ExitStack() as stack:
            listening = stack.enter_context(listener(self.config.serve))
            over = stack.enter_context(reported())  # exits last, when everything is written
            run, source, hf = stack.enter_context(assemble.serving(self.config, self.resume, self.given, self.allow))
            begun = run.step

            models: list[ServedModel] = []

            def finish() -> None:
                if any(model.lost is not None for model in models):
                    return  # the launcher restarts the run from its last checkpoint
                if not all(model.ended for model in models):
                    return  # interrupted twice, in the middle of a step
                over.append(run.log.folder.path)
                if run.step > begun:
                    save(run)
                if run.collapsed:
                    run.log.note(COLLAPSED)
                    return
                checkpoint.save_model(run.log.folder, run.learner.publish(run.step).save)

            stack.callback(finish)
            encoder = Encoder(hf.tokenizer, self.config.task)
            models.append(stack.enter_context(served(run, source, encoder, hf.context_length, listening)))
            stack.callback(models[0].end)  # before the endpoint closes: clients that wait for the step get a response
            self._stack = stack.pop_all()
        return models[0]

    def __exit__(self, *exception: Any) -> None:
        self._stack.__exit__(*exception)

    async def __aenter__(self) -> ServedModel:
        return self.__enter__()

    async def __aexit__(self, *exception: Any) -> None:
        self.__exit__(*exception)
