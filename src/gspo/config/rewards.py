"""Settings of the rewards: reward model, judge, sandboxed programs, and the reward functions themselves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from gspo.config.field import SEEDS, opt


@dataclass(frozen=True)
class RewardModelConfig:
    """The reward `model`: a sequence classifier from transformers, in this process or served by vLLM."""

    path: str = opt("", path=True)
    """Folder or Hugging Face id of the classifier; with `url`, the server's name for it. Required."""
    revision: str | None = opt(None)
    """Branch, tag or commit on the Hugging Face Hub."""
    label: str | None = opt(None)
    """Name or number of the label whose score is the reward. Required if the classifier has several labels."""
    output: str = opt("logit", choices=("logit", "probability"))
    """The score: the label's `logit`, or its `probability` (a sigmoid for one label, otherwise a softmax)."""
    max_length: int | None = opt(None, low=1, high=10**7)
    """Maximum number of tokens of prompt and completion together. Unset: as many as the classifier can read."""
    too_long: str = opt("none", choices=("none", "left", "right"))
    """Longer texts are not scored (`none`), or truncated at their start (`left`) or their end (`right`) to be scored."""
    device: str = opt("auto")
    """`auto` (a GPU if there is one), `cpu`, `cuda`, `cuda:1`, `mps`."""
    dtype: str = opt("float32", choices=("float32", "bfloat16"))
    """Data type of the weights."""
    batch_size: int = opt(16, low=1, high=10**6)
    """Texts per batch."""
    trust_remote_code: bool = opt(False)
    """Run Python code that comes with the classifier. Only for models whose code you have read."""
    allow_pickle: bool = opt(False)
    """Accept weights in other formats than safetensors. Loading such a file can run code."""
    url: str | None = opt(None)
    """Address of a vLLM server with the classifier, such as `http://127.0.0.1:8000`. Requests go to its `/classify`."""
    key_variable: str = opt("")
    """Environment variable with the API key of this server. Empty: no key."""
    timeout: float = opt(120.0, low=1e-3, high=86_400)
    """Seconds that the server may take for one completion, retries included."""
    retries: int = opt(3, low=0, high=1000)
    """Retries of a failed request (429, 5xx, lost connection), with growing waits."""
    max_concurrent: int = opt(16, low=1, high=4096)
    """Maximum number of concurrent requests to the server."""


@dataclass(frozen=True)
class JudgeConfig:
    """The reward `judge`: a language model behind any OpenAI-compatible endpoint, with a rubric."""

    model: str = opt("")
    """Name of the model at the endpoint. Required."""
    url: str = opt("https://api.openai.com/v1")
    """The endpoint, such as `http://127.0.0.1:8000/v1`."""
    key_variable: str = opt("OPENAI_API_KEY")
    """Environment variable with the API key. Empty: no key."""
    rubric: str = opt("")
    """What makes a completion good, in words. Required."""
    mode: str = opt("score", choices=("score", "group", "rank", "pairs"))
    """`score`: each completion is scored alone. `group`: all completions of a prompt are compared and scored together.
    `rank`: all are ranked, with evenly spaced rewards. `pairs`: every pair is compared, in both orders, which gives
    Bradley-Terry strengths."""
    scale: int = opt(10, low=1, high=10**6)
    """Highest score; the lowest is 0. The reward is score / scale."""
    reference_column: str | None = opt(None)
    """Column with a reference answer that the judge is shown."""
    request: dict[str, Any] = opt({"temperature": 0})
    """Extra fields of each request, such as `{reasoning_effort = "low"}`."""
    timeout: float = opt(120.0, low=1e-3, high=86_400)
    """Seconds that one response may take, retries included."""
    retries: int = opt(3, low=0, high=1000)
    """Retries of a request after a failure (429, 5xx, lost connection; with growing waits) or an unreadable response."""
    max_concurrent: int = opt(16, low=1, high=4096)
    """Maximum number of concurrent requests."""
    cache: str | None = opt(None, path=True)
    """SQLite file that caches responses; several runs may share it, even concurrently. Unset: they are cached in memory."""
    seed: int = opt(0, low=0, high=SEEDS)
    """Seed of the order in which completions are shown together."""


@dataclass(frozen=True)
class CodeConfig:
    """The reward `code`: the program in the last fenced block of a completion, run on tests in a sandbox."""

    sandbox: str = opt("auto", choices=("auto", "bwrap", "landlock", "none"))
    """Sandbox of the programs, also those of benchmarks: bubblewrap (`bwrap`), or Landlock with seccomp where user
    namespaces are forbidden (`landlock`). `auto`: the first that works. `none`: no protection at all."""
    tests_column: str = opt("tests")
    """Column with the tests: a list, or JSON of one, with `{"input": ..., "output": ...}` for standard input and output, or
    `{"arguments": [...], "value": ...}` for a function."""
    function_column: str = opt("function")
    """Column with the name of the function that tests with arguments call. Rows without one are whole programs."""
    language: str = opt("auto", choices=("auto", "python", "cpp"))
    """Language of the programs. `auto`: C++ if the fence says so (```cpp), otherwise Python."""
    score: str = opt("all", choices=("all", "share"))
    """`all`: 1 for a program that passes all tests, otherwise 0. `share`: the share of tests that it passes."""
    cpu_seconds: float = opt(10.0, low=0.1, high=3600)
    """CPU time limit of one test, in seconds."""
    total_cpu_seconds: float = opt(60.0, low=0.1, high=86_400)
    """CPU time limit of all tests of a completion, in seconds. The remaining tests then count as failed."""
    memory: float = opt(1.0, low=0.0625, high=1024)
    """Memory limit of one test in GiB, on top of what Python itself takes."""
    max_output_mib: float = opt(16.0, low=0.001, high=1024)
    """Maximum standard output of a test, in MiB."""


NAMED = ("task", "exact", "math", "code", "model", "judge")
"""Built-in rewards that `reward.functions` can name, besides module:function."""
PROGRAMS = "gspo.rewards.programs:"
"""Prefix of the benchmarks' own rewards, which run programs too."""


def runs_programs(functions: Iterable[str]) -> bool:
    """Whether one of these rewards runs programs in gspo's sandbox."""
    return any(name == "code" or name.startswith(PROGRAMS) for name in functions)


@dataclass(frozen=True)
class RewardConfig:
    """The reward of a completion."""

    functions: list[str] = opt(["task"])
    """Any of `task` (the source's own scorer), `exact`, `math`, `code` (see [code]), `model` (see [reward_model]), `judge`
    (see [judge]), and `module:function`. Empty: no reward, only a teacher (see [teacher])."""
    weights: list[float] = opt([], low=-1e6, high=1e6)
    """One weight per function. Empty: all 1. With a teacher all may be 0: then the rewards are only watched."""
    answer_column: str = opt("answer")
    """Column with the correct answer, for `exact` and `math`; benchmarks have their own. Every column may be nested:
    `extra_info.answer`."""
    timeout: float = opt(10.0, low=1e-3, high=86_400)
    """Seconds that one call of a reward may take. A completion whose reward hangs is left out of its group."""
    workers: int = opt(1, low=1, high=256)
    """Worker processes that score completions, on the machine of rank 0."""
    memory: float = opt(8.0, low=0.25, high=1e6)
    """Memory limit in GiB of each worker process, and of each program that it starts."""
    env_passthrough: list[str] = opt([])
    """Names of environment variables that a `module:function` needs, such as that of an API key. Other variables that may
    hold secrets are hidden from its process."""
    correct_threshold: float = opt(1.0, low=-1e12, high=1e12)
    """A completion counts as correct in `eval/accuracy` if the first of `functions` gives it at least this reward."""
