"""What the vLLM sampler makes of an engine that answers wrongly. The folder engine has the tests against a real one."""

import sys
import threading
import time

import pytest
from safetensors import SafetensorError

from gspo.backends.hf.policy import HFPolicy
from gspo.backends.vllm.errors import EngineError
from gspo.backends.vllm.fleet import MAX_FAILURES, State
from gspo.backends.vllm.server import GENERATE
from gspo.interfaces import SamplerError
from gspo.learner.weights import PolicyWeights
from gspo.types import Rollout, Sampling
from tests.backends.vllm.engines import Bigrams
from tests.backends.vllm.tools import PROMPTS, choice, part, sampler_of
from tests.patience import PATIENCE
from tests.tiny_run import model


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr("gspo.backends.vllm.fleet.PAUSE", 0.0)


def test_a_completion_as_it_comes(engine, tmp_path):
    engine.completions.append((200, {"choices": [choice()]}))
    rollouts = sampler_of(engine, tmp_path).generate(PROMPTS, 2, Sampling(8, 0.9, seed=1, stop_ids=(1,), stop=("ab",)))
    assert [r.prompt.id for r in rollouts] == ["a", "a", "b", "b"]
    first = rollouts[0]
    assert first.tokens.tolist() == [2, 3, 4, 5, 6, 1] and first.sampled.tolist() == [False] * 3 + [True] * 3
    assert first.logp.tolist() == [0, 0, 0, -0.5, -1.0, -2.0] and first.version.tolist() == [-1, -1, -1, 3, 3, 3]
    assert first.stop == "eos"
    path, body = next((path, body) for path, body in engine.asked if body["token_ids"] == [2, 3, 4])
    params = body["sampling_params"]
    assert path == GENERATE and params["logprobs"] == 0 and params["max_tokens"] == 8
    assert params["temperature"] == 0.9 and params["stop_token_ids"] == [1] and params["stop"] == ["ab"]
    assert params["ignore_eos"]
    assert len({body["sampling_params"]["seed"] for _, body in engine.asked}) == 4


def counting(engine, counts):
    """Answers /metrics with these counts of tokens, one after the other, and requests for completions once they are read."""
    read, plain = threading.Event(), engine.handler.do_POST

    def get(self):
        if self.path != "/metrics":
            return plain(self)
        self.send_response(200)
        self.end_headers()
        lines = (b'vllm:generation_tokens_total{engine="%d"} %.1f\n' % pair for pair in enumerate(counts.pop(0)))
        self.wfile.write(b"".join(lines))
        if not counts:
            read.set()

    engine.handler.do_GET = get
    engine.handler.do_POST = lambda self: (self.path == GENERATE and read.wait(PATIENCE), plain(self))


def test_a_completion_may_take_long_while_its_engine_samples(engine, tmp_path):
    engine.completions.append((200, {"choices": [choice()]}))
    counting(engine, [(10, 0), (10, 5), (20, 5)])
    (rollout,) = sampler_of(engine, tmp_path, timeout=0.2).generate(PROMPTS[:1], 1, Sampling(8))
    assert rollout.stop == "stop"


@pytest.mark.parametrize(("counts", "why"), [((), ", and its /metrics counts no tokens: .*--disable-log"), ((10, 5), "")])
def test_an_engine_that_samples_no_token_hangs(engine, tmp_path, counts, why):
    """Also one that counts none."""
    engine.completions.append((200, {"choices": [choice()]}))
    counting(engine, left := [counts] * 40)
    with pytest.raises(EngineError, match=rf"it has not answered for 0\.2 s \(sampler.timeout\){why}"):
        sampler_of(engine, tmp_path, timeout=0.2).generate(PROMPTS[:1], 1, Sampling(8))
    assert len(left) > 20


def test_one_bad_answer_is_asked_for_again(engine, tmp_path):
    """After the weights were put in place once more; what else came stays."""
    engine.completions += [(500, b"busy"), (200, {"choices": [choice()]})]
    notes = []
    rollouts = sampler_of(engine, tmp_path, batch_size=1, notify=notes.append).generate(PROMPTS, 2, Sampling(8))
    assert len(rollouts) == 4 and len(notes) == 2 and "status 500: busy" in notes[0] and "is back" in notes[1]
    paths = [path for path, _ in engine.asked]
    assert paths.count(GENERATE) == 5 and paths.count("/collective_rpc") == 1 and paths[-1] == GENERATE


def test_one_that_ends_requests_at_once_for_no_reason_is_given_up(engine, tmp_path):
    """It is not asked for ever: an answer without a token is no progress while its weights stay."""
    engine.completions.append(part())
    sampler = sampler_of(engine, tmp_path)
    try:
        job = sampler.begin(Rollout.begun(PROMPTS[0]), 1, Sampling(8))
        with pytest.raises(EngineError, match=r"0 tokens and finish reason 'abort'"):
            job.future.result(PATIENCE)
    finally:
        sampler.close()
    assert [path for path, _ in engine.asked].count(GENERATE) == MAX_FAILURES
    assert sampler.fleet.members[0].state is State.LOST


def test_one_that_gives_a_token_a_time_ends(engine, tmp_path):
    engine.completions.append(part(5))
    (rollout,) = sampler_of(engine, tmp_path).generate(PROMPTS[:1], 1, Sampling(8))
    assert rollout.stop == "length" and rollout.tokens[rollout.sampled].tolist() == [5] * 8


def test_a_request_that_is_refused_is_not_repeated(engine, tmp_path):
    """No new start of the server makes a prompt shorter."""
    engine.completions.append((400, b"prompt (300) is longer than max_model_len (256)"))
    with pytest.raises(SamplerError, match=r"refuses a request \(status 400\): prompt \(300\) is longer"):
        sampler_of(engine, tmp_path).generate(PROMPTS, 2, Sampling(8))
    assert "/collective_rpc" not in [path for path, _ in engine.asked]


def test_an_engine_that_is_lost_is_started_once_for_all(engine, tmp_path):
    """Not once for each of its requests: MAX_FAILURES failures, of which one is that of the requests, and it is given up."""
    sampler = sampler_of(engine, tmp_path)
    (member,) = sampler.fleet.members
    member.engine.url = "http://127.0.0.1:9"
    member.engine.log = tmp_path / "vllm.log"
    member.engine.command = [sys.executable, "-c", "raise SystemExit('Error: cannot start')"]
    for job in [sampler.begin(Rollout.begun(PROMPTS[0]), i, Sampling(8)) for i in range(6)]:
        with pytest.raises(EngineError, match="cannot start"):
            job.result()
    assert (tmp_path / "vllm.log").read_text().count("cannot start") == MAX_FAILURES - 1
    assert member.state is State.LOST


def test_the_check_does_not_queue_behind_long_completions(engine, tmp_path):
    sampler, free = sampler_of(engine, tmp_path, batch_size=1), threading.Event()
    engine.completions += [(200, {"choices": [choice()]}, lambda: free.wait(PATIENCE)), (200, {"choices": [choice()]})]
    long = sampler.begin(Rollout.begun(PROMPTS[0]), 1, Sampling(8))
    while not engine.asked:
        time.sleep(0.01)
    with pytest.raises(EngineError, match="disagree about version 3"):  # the scripted likelihoods are not the policy's
        sampler.check(PolicyWeights(HFPolicy(sampler.model), sampler.version))
    assert not long.done()
    free.set()
    assert long.result().stop == "stop"


def test_no_room_for_the_weights_is_said_with_the_remedy(engine, tmp_path):
    sampler = sampler_of(engine, tmp_path)

    class Full:
        def save(self, folder, *, merged):
            raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    with pytest.raises(SamplerError, match=r"cannot be written to .* MiB left .*No space left.*sampler.weight_dir"):
        sampler.transfer.prepare(Full())


def test_weights_that_cannot_be_put_in_place_end_the_run_with_a_checkpoint(engine, tmp_path):
    """For a SamplerError it saves, if the version is that of its weights."""
    sampler, weights = sampler_of(engine, tmp_path), Bigrams(4, model().config.vocab_size)
    sampler.transfer.prepare = lambda weights: None  # as if somebody had deleted what it wrote
    with pytest.raises(SamplerError, match=r"cannot take the place of the old ones in .*No such file"):
        sampler.load(weights)
    assert sampler.version == 4
