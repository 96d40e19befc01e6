"""Bodies of requests, in OpenAI's format. What cannot be granted is refused by name, never ignored.

The types of the package openai would not do: they admit images, audio and options that the policy does not have.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat, model_validator

from gspo.agents.request_options import check_granted
from gspo.config.field import COOLEST

MOST_TURNS = 128


def _warm(temperature: float) -> float:
    if 0 < temperature < COOLEST:
        raise ValueError(f"0, or at least {COOLEST:g}")
    return temperature


Stop = Annotated[str, Field(min_length=1)]
Size = Annotated[int, Field(ge=1, le=1 << 30)]
Temperature = Annotated[float, Field(ge=0, le=2, allow_inf_nan=False), AfterValidator(_warm)]


class TextPart(BaseModel):
    """A part of a message: text."""

    model_config = ConfigDict(extra="forbid")
    type: Literal["text"]
    text: str


class FunctionCall(BaseModel):
    """The function that a tool call names."""

    name: str
    arguments: str = "{}"


class ToolCall(BaseModel):
    """A tool call of an earlier turn."""

    id: str = ""
    type: Literal["function"] = "function"
    function: FunctionCall


class Message(BaseModel):
    """A message for the policy to read."""

    model_config = ConfigDict(extra="allow")
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _readable(self) -> Self:
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


class ChatRequest(BaseModel):
    """POST /v1/chat/completions."""

    model_config = ConfigDict(strict=True)
    model: str
    messages: list[Message] = Field(min_length=1)
    tools: list[Tool] | None = None
    tool_choice: Literal["auto", "none"] | None = None
    logprobs: bool | None = False
    n: int = Field(1, ge=1, le=MOST_TURNS)
    temperature: Temperature | None = None
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=0, le=1 << 30)
    seed: int | None = Field(None, ge=0, lt=1 << 63)
    stop: Stop | Annotated[list[Stop], Field(max_length=16)] | None = None
    max_tokens: Size | None = None
    max_completion_tokens: Size | None = None
    stream: bool | None = False
    stream_options: dict[str, Any] | None = None

    @model_validator(mode="before")
    @classmethod
    def _granted(cls, body: Any) -> Any:
        if isinstance(body, dict):
            check_granted(body, cls.model_fields)
        return body


class TrainPart(BaseModel):
    """A part of a request to train. Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid")


class HistoryBody(TrainPart):
    """A conversation beside the main one as JSON."""

    messages_and_choices: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None


class TrajectoryBody(HistoryBody):
    """A trajectory as JSON, also one of ART's: the versions of its model are not read."""

    reward: float
    turn_rewards: list[float] | None = None
    metrics: dict[str, FiniteFloat] = {}
    metadata: dict[str, Any] = {}
    additional_histories: list[HistoryBody] = []
    logs: list[str] = []
    start_time: Any = None
    initial_policy_version: Any = None
    final_policy_version: Any = None


class GroupBody(TrainPart):
    """A group of trajectories as JSON, also one of ART's: its metrics and logs are not read. `exceptions` are of runs of the
    agent that failed; they are counted.
    """

    trajectories: list[TrajectoryBody]
    exceptions: list[Any] = []
    metadata: dict[str, Any] = {}
    metrics: Any = None
    logs: Any = None


class TrainRequest(TrainPart):
    """POST /v1/train."""

    groups: list[GroupBody] = Field(min_length=1)
    learning_rate: float | None = Field(None, gt=0, le=1)
    importance_sampling_level: Literal["sequence", "turn", "token"] | None = None
