"""Options of a client's request besides the messages. Unsupported ones are rejected, never ignored."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from gspo.agents.chat import TurnOptions
from gspo.config.checks import nearest

# Options without effect on the completion.
HARMLESS = {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"}
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "tool_choice": ("auto", "none"), "response_format": ({"type": "text"},), "best_of": (1,), "echo": (False,),
    "top_logprobs": (0,), "functions": ([],), "modalities": (["text"],), "logit_bias": ({},),
    "presence_penalty": (0,), "frequency_penalty": (0,), "repetition_penalty": (1,), "min_p": (0,),
    "parallel_tool_calls": (True,),
}  # fmt: skip


def check_granted(body: Mapping[str, Any], granted: Collection[str]) -> None:
    """Raises ValueError if a request has an option, besides the `granted` ones, that asks for something unsupported."""
    for name, value in body.items():
        allowed = value is None or name in granted or name in HARMLESS
        # In Python False is 0 and True is 1, in JSON they are not.
        if not allowed and (type(value) is bool, value) not in [(type(v) is bool, v) for v in NEUTRAL.get(name, ())]:
            near = "" if name in NEUTRAL else nearest(name, [*granted, *HARMLESS, *NEUTRAL])
            raise ValueError(f"{name} = {value!r:.60} cannot be granted here: leave it out{near}")


def turn_options(body: Mapping[str, Any], seed: int | None) -> TurnOptions:
    """The sampling options of a request, by their OpenAI names."""
    limits = [body[name] for name in ("max_tokens", "max_completion_tokens") if body.get(name)]
    stop = body.get("stop") or ()
    return TurnOptions(
        min(limits, default=None), body.get("temperature"), body.get("top_p"), body.get("top_k"),
        (stop,) if isinstance(stop, str) else tuple(stop), seed,
    )  # fmt: skip
