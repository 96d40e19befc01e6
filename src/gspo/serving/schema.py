"""What a client may ask, in OpenAI's words. What cannot be granted is refused, never ignored."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Discriminator, Field, FiniteFloat, Tag, field_validator, model_validator

from gspo.agents.request_options import HARMLESS, NEUTRAL, check_granted
from gspo.config.checks import nearest

MOST_TURNS = 128
DEEPEST = 100  # levels of a JSON value; Python's own limit is not far beyond
COOLEST = 0.01  # least temperature above 0: logits divided by less overflow
Text = Annotated[str, Field(max_length=1 << 22)]


def sound(text: str) -> str:
    """The text itself. Raises ValueError for half a surrogate pair, which no tokenizer reads."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("holds half a surrogate pair, which is no text") from None
    return text


def all_sound(value: Any, deep: int = 0) -> None:
    """Looks through a whole JSON value. Raises ValueError for half a surrogate pair, and where it is nested too deeply."""
    if deep > DEEPEST:
        raise ValueError(f"is nested more than {DEEPEST} levels deep")
    if isinstance(value, str):
        sound(value)
    elif isinstance(value, dict):
        for name, item in value.items():
            sound(name)
            all_sound(item, deep + 1)
    elif isinstance(value, list):
        for item in value:
            all_sound(item, deep + 1)


class TextPart(BaseModel):
    """A part of a message: text."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["text"]
    text: Text


class FunctionCall(BaseModel):
    """The function that a tool call names."""

    name: str
    arguments: Text = "{}"


class ToolCall(BaseModel):
    """A tool call of an earlier turn."""

    model_config = ConfigDict(extra="allow")
    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionCall


UNREAD = {"function_call": "give it as one of tool_calls", "audio": "give its text as content"}


class BaseMessage(BaseModel):
    """A message of a conversation."""

    model_config = ConfigDict(extra="allow")
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _readable(self) -> Self:
        for name, remedy in UNREAD.items():
            if (self.model_extra or {}).get(name) is not None:
                raise ValueError(f"{name}: the policy does not read it; {remedy}")
        return self


SAYS_SOMETHING: dict[str, Any] = {
    "anyOf": [
        {"required": ["content"], "properties": {"content": {"type": ["string", "array"]}}},
        {"required": ["tool_calls"], "properties": {"role": {"const": "assistant"}, "tool_calls": {"minItems": 1}}},
    ]
}


class ChatMessage(BaseMessage):
    """A message for the policy to read."""

    model_config = ConfigDict(extra="allow", json_schema_extra=SAYS_SOMETHING)

    @model_validator(mode="after")
    def _says_something(self) -> ChatMessage:
        if self.content is None and not (self.role == "assistant" and self.tool_calls):
            raise ValueError("a message without content")
        return self


class ToolFunction(BaseModel):
    """A function that the policy may call."""

    model_config = ConfigDict(extra="allow")
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(BaseModel):
    """A tool that the policy may call."""

    type: Literal["function"]
    function: ToolFunction


def _tell_extras(schema: dict[str, Any]) -> None:
    granted = {name: {"enum": [*values, None]} for name, values in NEUTRAL.items()}
    schema["properties"] |= {name: {} for name in sorted(HARMLESS)} | granted
    schema["additionalProperties"] = False


class SamplingRequest(BaseModel):
    """What both kinds of request share."""

    model_config = ConfigDict(extra="allow", strict=True, json_schema_extra=_tell_extras)
    model: str
    n: int = Field(1, ge=1, le=MOST_TURNS)
    temperature: float | None = Field(None, ge=0, le=2, allow_inf_nan=False)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0, le=1 << 30)
    seed: int | None = Field(None, ge=-(1 << 63), lt=1 << 63)
    stop: str | list[str] | None = None
    max_tokens: int | None = Field(None, ge=1, le=1 << 30)
    stream: bool | None = False

    @field_validator("temperature")
    @classmethod
    def _warm(cls, temperature: float | None) -> float | None:
        if temperature is not None and 0 < temperature < COOLEST:
            raise ValueError(f"0, or at least {COOLEST:g}")
        return temperature

    @field_validator("stop")
    @classmethod
    def _stops(cls, stop: Any) -> Any:
        listed = [stop] if isinstance(stop, str) else stop or []
        if len(listed) > 16 or not all(listed):
            raise ValueError("at most 16 strings, none of them empty")
        return stop

    @model_validator(mode="after")
    def _grantable(self) -> SamplingRequest:
        all_sound(self.model_dump())
        check_granted(self.model_extra or {}, type(self).model_fields)
        return self

    @property
    def ends(self) -> tuple[str, ...]:
        """The strings that end a turn."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())


class ChatRequest(SamplingRequest):
    """POST /v1/chat/completions."""

    messages: list[ChatMessage] = Field(min_length=1, max_length=10_000)
    tools: list[Tool] | None = None
    logprobs: bool | None = False
    max_completion_tokens: int | None = Field(None, ge=1, le=1 << 30)


class CompletionRequest(SamplingRequest):
    """POST /v1/completions."""

    prompt: Annotated[Text, Field(min_length=1)]
    logprobs: int | None = Field(None, ge=0, le=1)


class HandedMessage(BaseMessage):
    """A message that an agent hands back; a turn may have the id of its choice."""

    id: str | None = None


class HandedChoice(BaseModel):
    """A choice of a response, as the endpoint gave it."""

    model_config = ConfigDict(extra="allow")
    id: str | None = None
    message: BaseMessage


def _kind(item: Any) -> str:
    return "choice" if isinstance(item, HandedChoice) or (isinstance(item, dict) and "message" in item) else "message"


Item = Annotated[
    Annotated[HandedChoice, Tag("choice")] | Annotated[HandedMessage, Tag("message")], Discriminator(_kind)
]  # fmt: skip


class Known(BaseModel):
    """A part of a request to train. A key that it does not know is refused."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _all_known(cls, body: Any) -> Any:
        if isinstance(body, dict):
            for name in body:
                if name not in cls.model_fields:
                    near, fields = nearest(name, cls.model_fields) or ".", ", ".join(cls.model_fields)
                    raise ValueError(f"unknown key {name!r:.60}{near} Known are {fields}")
        return body


class HistoryBody(Known):
    """A conversation beside the main one as JSON."""

    messages_and_choices: list[Item] = Field(max_length=10_000)
    tools: list[dict[str, Any]] | None = None


class TrajectoryBody(Known):
    """A trajectory as JSON, also one of ART's: the versions of its model are not read."""

    messages_and_choices: list[Item] = Field(max_length=10_000)
    reward: float
    turn_rewards: list[float] | None = None
    metrics: dict[str, FiniteFloat] = {}
    metadata: dict[str, Any] = {}
    additional_histories: list[HistoryBody] = []
    tools: list[dict[str, Any]] | None = None
    logs: list[str] = []
    start_time: Any = Field(None, exclude=True)
    initial_policy_version: Any = Field(None, exclude=True)
    final_policy_version: Any = Field(None, exclude=True)


class GroupBody(Known):
    """A group of trajectories as JSON, also one of ART's: its metrics and logs are not read. exceptions: of runs of the
    agent that failed, which are counted.
    """

    trajectories: list[TrajectoryBody]
    exceptions: list[Any] = []
    metadata: dict[str, Any] = {}
    metrics: Any = Field(None, exclude=True)
    logs: Any = Field(None, exclude=True)


class TrainRequest(Known):
    """POST /v1/train."""

    groups: list[GroupBody] = Field(min_length=1)
    learning_rate: float | None = Field(None, gt=0, le=1)
    importance_sampling_level: Literal["sequence", "turn", "token"] | None = None

    @model_validator(mode="after")
    def _sound(self) -> TrainRequest:
        all_sound(self.model_dump())
        return self


class Reason(BaseModel):
    """Why a request failed."""

    message: str
    type: str
    param: str | None
    code: str | None


class Failure(BaseModel):
    """A failed request, as OpenAI tells of it."""

    error: Reason
