"""What an engine in this process answers, without one: engine/test_in_process.py has the engine itself."""

from concurrent.futures import Future
from types import SimpleNamespace

import pytest

from gspo.backends.vllm.errors import EngineError
from gspo.backends.vllm.in_process import answered, fail, give


def output(**changes):
    """As vLLM words it."""
    logprobs = [{5: SimpleNamespace(logprob=-0.5), 9: SimpleNamespace(logprob=-0.1)}, {6: SimpleNamespace(logprob=-1.0)}]
    span = SimpleNamespace(version="3", start=0, end=2)
    one = {"token_ids": (5, 6), "logprobs": logprobs, "weight_versions": [span], "finish_reason": "stop"}
    return SimpleNamespace(outputs=[SimpleNamespace(**one | {"routed_experts": "e"} | changes)])


def test_it_answers_as_a_server_does():
    (choice,) = answered(output())["choices"]
    assert choice == {
        "token_ids": [5, 6], "logprobs": {"content": [{"logprob": -0.5}, {"logprob": -1.0}]}, "finish_reason": "stop",
        "weight_versions": [{"version": "3", "start": 0, "end": 2}], "routed_experts": "e",
    }  # fmt: skip


def test_what_was_interrupted_has_one_version_and_no_experts():
    (choice,) = answered(output(weight_versions=None, finish_reason=None), "abort", "7")["choices"]
    assert choice["weight_versions"] == [{"version": "7", "start": 0, "end": 2}] and choice["routed_experts"] is None
    assert choice["finish_reason"] == "abort"
    (nothing,) = answered(None, "abort", "7")["choices"]
    assert (nothing["token_ids"], nothing["finish_reason"]) == ([], "abort")


def test_all_who_wait_hear_of_a_lost_engine():
    waiting, gone = Future(), Future()
    gone.cancel()
    asked = {"a": (waiting, None), "b": (gone, None)}
    fail(asked, EngineError("lost"))
    assert not asked and gone.cancelled()
    with pytest.raises(EngineError, match="lost"):
        waiting.result(0)
    done = Future()
    give(done, 3)
    give(done, 4)  # nobody waits any more
    assert done.result(0) == 3
