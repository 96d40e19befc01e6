"""A teacher behind an endpoint: its numbers, what is refused, and whole runs."""

import json
from contextlib import closing

import pytest
import torch
from fastapi.responses import Response

from gspo.backends.hf.policy import HFPolicy
from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer, tiny_qwen3_moe
from gspo.config.policy import TeacherConfig
from gspo.interfaces import TeacherFailed
from gspo.learner.memory import MicroBatches
from gspo.learner.scoring import read
from gspo.rewards.teacher_endpoint import TeacherEndpoint, paths, probe
from gspo.rollout.credit import completion_of
from gspo.types import Prompt, Rollout
from tests import tiny_run
from tests.rewards.teachers import NAME, Teacher, refused, served
from tests.training.whole import lines, numbers, train

SMALL = {"hidden": 32, "layers": 1, "experts": 4, "expert_width": 32, "heads": 2, "kv_heads": 1, "context": 64}


def tiny_teacher(pieces=tiny_run.PIECES):
    return build_tiny(tiny_qwen3_moe(**SMALL), longest_match_tokenizer(pieces), 1)


def rollout(tokens, sampled, parent=None, reward=1.0):
    tokens, sampled = torch.tensor(tokens), torch.tensor(sampled).bool()
    version = torch.where(sampled, 0, -1)
    parent = None if parent is None else torch.tensor(parent)
    prompt = Prompt("0", "", tuple(tokens[:2].tolist()))
    return Rollout(prompt, tokens, sampled, torch.zeros(len(tokens)), version, "eos", reward=reward, parent=parent)


WHERE = f"teacher.url = '.*', teacher.path = '{NAME}'"
# Two turns with text between them, and a tree: after its first two tokens, one branch of two and one of three.
LINEAR = rollout([4, 5, 6, 7, 8, 9], [0, 0, 1, 1, 0, 1])
TREE = rollout([4, 5, 6, 7, 8, 9, 10], [0, 1, 1, 1, 0, 1, 0], [-1, 0, 1, 2, 1, 4, 5])


def test_paths_hold_each_sampled_token_and_end_at_one():
    assert paths(LINEAR) == [[0, 1, 2, 3, 4, 5]]
    assert paths(TREE) == [[0, 1, 4, 5], [0, 1, 2, 3]]
    assert paths(rollout([4, 5, 6], [0, 1, 0])) == [[0, 1]]
    assert paths(rollout([4, 5, 6, 7], [0, 1, 0, 1], [-1, 0, -1, 2])) == [[2, 3], [0, 1]]  # two roots
    assert paths(rollout([4, 5], [0, 0])) == []


def test_it_gives_what_a_teacher_in_this_process_gives():
    """To rounding in float32, for each sampled token; one request with token ids for each path."""
    tiny, rollouts = tiny_teacher(), [LINEAR, TREE, rollout([4, 5, 6], [0, 0, 1], reward=None)]
    with served(Teacher(tiny)) as (client, server):
        taught = client.read(rollouts)
        assert sorted(body["prompt"] for body in server.asked) == [[4, 5, 6, 7], [4, 5, 6, 7, 8, 9], [4, 5, 8, 9]]
        assert {(body["model"], body["temperature"], body["max_tokens"]) for body in server.asked} == {(NAME, 1, 1)}
    assert taught[2].logp_teacher is None
    completions = [completion_of(each, 0.0) for each in taught[:2]]
    local = read(HFPolicy(tiny), completions, MicroBatches(100))
    for made, one, reading in zip(taught, completions, local):
        torch.testing.assert_close(one.logp_teacher, reading.logp, rtol=1e-5, atol=1e-6)
        assert one.logp_teacher.dtype == torch.float32 and not made.logp_teacher[~made.sampled].any()
        assert len({round(float(each), 4) for each in one.logp_teacher}) == len(reading.logp)  # so that none is confused


def test_the_probe_takes_the_highest_ids_and_some_of_the_others():
    tokenizer = longest_match_tokenizer([chr(i) for i in range(0x4E00, 0x4E00 + 998)])
    ids = probe(tokenizer, 256)
    assert 200 < len(ids) <= 256 and ids[-128:] == [*range(872, 1000)] and max(b - a for a, b in zip(ids, ids[1:])) <= 7
    assert probe(tokenizer, 1) == [0, 999]


def altered(**position):
    """Of the last token, this instead of the truth; None: without it."""

    def change(answer, body):
        last = answer["choices"][0]["prompt_logprobs"][-1][str(body["prompt"][-1])]
        last |= position
        return Response(json.dumps(answer), media_type="application/json")  # which writes NaN too

    return change


def positions(change):
    """change(positions) instead of the true ones."""

    def changed(answer, body):
        answer["choices"][0]["prompt_logprobs"] = change(answer["choices"][0]["prompt_logprobs"])
        return answer

    return changed


HOSTILE = {
    "it returns no prompt_logprobs: serve the teacher with vLLM": positions(lambda told: None),
    "it returns log-probabilities of 5 tokens for 6": positions(lambda told: told[:-1]),
    "it returns no log-probability of token 9": positions(lambda told: [*told[:-1], {"3": told[-1]["9"]}]),
    "it returns no log-probability of token 9$": positions(lambda told: [*told[:-1], None]),
    "it returns nan for token 9: no log-probability, which is finite": altered(logprob=float("nan")),
    "it returns -inf for token 9": altered(logprob=-float("inf")),
    "it returns -9999 for token 9": altered(logprob=-9999.0),
    "it returns 3.5 for token 9: .*logprobs_mode = raw_logprobs": altered(logprob=3.5),
    "its response is no completion": lambda answer, body: {"choices": []},
    "its response is no completion$": lambda answer, body: Response("<html>", media_type="text/html"),
    "HTTP 400: .*out of vocabulary": lambda answer, body: refused("Token id 9 is out of vocabulary"),
    "HTTP 500": lambda answer, body: Response("{}", 500),
    "no response within 0.2 s": lambda answer, body: (1.0, answer),
}


def test_answers_that_are_no_log_probabilities_are_refused(subtests):
    teacher = Teacher(tiny_teacher())
    with served(teacher) as (client, _):
        for message, teacher.change in HOSTILE.items():
            client.endpoint.timeout = 0.2 if "0.2" in message else 60
            with subtests.test(message), pytest.raises(TeacherFailed, match=f"^{WHERE}: {message}"):
                client.read([LINEAR])


def test_a_request_that_fails_is_sent_again_and_a_limit_holds():
    failed = []

    def once(answer, body):
        if not failed:
            failed.append(body)
            return Response("{}", 503, {"retry-after-ms": "20"})
        return 0.02, answer

    with served(Teacher(tiny_teacher(), change=once), retries=1, max_concurrent=2) as (client, server):
        taught = client.read([LINEAR] * 8)
        assert len(server.asked) == 9 and server.most == 2
    assert all(torch.equal(each.logp_teacher, taught[0].logp_teacher) for each in taught)


REFUSED = {
    "it serves other: name one of them as teacher.path": lambda t: setattr(t, "models", [{"id": "other"}]),
    "its max_model_len is 20, but this run needs 30: start .* as much, or lower rollout.max_completion_length": (
        lambda t: t.models[0].update(max_model_len=20)
    ),
    "it returns no prompt_logprobs": lambda t: setattr(t, "change", positions(lambda told: None)),
    "another vocabulary than the model's: .* is '.*' here and '.*' there": lambda t: setattr(
        t, "tiny", tiny_teacher(tiny_run.PIECES[::-1])
    ),
    "HTTP 400: .*Token id 18 is out of vocabulary": lambda t: setattr(t, "tiny", tiny_teacher(tiny_run.PIECES[:-1])),
    "it returns 2 for token": lambda t: setattr(t, "change", altered(logprob=2.0)),
    "HTTP 500": lambda t: setattr(t, "change", lambda answer, body: Response("{}", 500)),
    "its list of models cannot be read": lambda t: setattr(t, "models", ["large"]),
}


def test_a_short_request_tells_what_cannot_teach(subtests):
    tokenizer, teacher = longest_match_tokenizer(tiny_run.PIECES), Teacher(right := tiny_teacher())
    with served(teacher) as (client, server):
        client.check(tokenizer, 30)
        client.check(tokenizer, None)
        client.check(tokenizer, 64)
        assert [len(body["prompt"]) for body in server.asked] == [19] * 3
        assert server.asked[0]["prompt"] == [*range(19)] and len(tokenizer) == 19
        for message, spoil in REFUSED.items():
            teacher.__init__(right)
            spoil(teacher)
            with subtests.test(message), pytest.raises(ValueError, match=f"^{WHERE}: {message}"):
                client.check(tokenizer, 30)


def test_an_endpoint_that_is_not_there_is_told_at_once():
    config = TeacherConfig(path=NAME, url="http://127.0.0.1:9/v1", retries=1000)
    with closing(TeacherEndpoint(config)) as client, pytest.raises(ValueError, match=f"^{WHERE}: cannot be reached"):
        client.check(longest_match_tokenizer(tiny_run.PIECES), 30)


def test_a_failure_leaves_no_requests_before_those_of_the_next_call():
    teacher = Teacher(tiny_teacher(), change=lambda answer, body: Response("{}", 500))
    with served(teacher, max_concurrent=1) as (client, server):
        with pytest.raises(TeacherFailed, match="HTTP 500"):
            client.read([LINEAR] * 8)
        teacher.change = lambda answer, body: answer
        assert client.read([TREE])[0].logp_teacher is not None
        assert len(server.asked) == 1 + 2


def test_the_login_in_the_address_is_not_shown():
    """Clients of `gspo serve` read why a call to `train` failed."""
    config = TeacherConfig(path=NAME, url="http://me:word@127.0.0.1:9/v1", retries=0)
    with closing(TeacherEndpoint(config)) as client:
        with pytest.raises(TeacherFailed, match=r"127.0.0.1:9.* cannot be reached") as error:
            client.read([LINEAR])
        assert "me:word" not in str(error.value)


def test_a_key_is_sent_and_not_shown(monkeypatch):
    monkeypatch.setenv("TEACHER_KEY", "sk-hidden-9")
    wrong = Teacher(tiny_teacher(), change=lambda answer, body: refused("no such key: sk-hidden-9", 401))
    with served(wrong, key_variable="TEACHER_KEY") as (client, server):
        with pytest.raises(TeacherFailed, match="HTTP 401") as error:
            client.read([LINEAR])
        assert server.keys == ["Bearer sk-hidden-9"] and "sk-hidden" not in str(error.value)


TAUGHT = {"algorithm": {"name": "grpo", "mini_batches": 2}, "eval": {"every": 0}}
STEPS = {"rollout": {"num_prompts": 2, "max_completion_length": 6}, "train": {"steps": 2, "save_every": 9}}


def test_a_run_is_that_with_the_teacher_in_this_process(tmp_path):
    tiny = tiny_teacher()
    tiny.save(tmp_path / "teacher")
    local = train(tmp_path / "local", teacher={"path": str(tmp_path / "teacher")}, **TAUGHT, **STEPS)
    with served(Teacher(tiny)) as (client, server):
        run = train(tmp_path / "run", teacher={"path": NAME, "url": server.url}, **TAUGHT, **STEPS)
        assert len(server.asked) == 1 + 2 * 8  # the probe, and each completion of two prompts
    here, there = (lines(made.folder / "metrics.jsonl") for made in (local, run))
    for name in ("teacher/kl", "loss", "grad_norm"):
        assert [line[name] for line in there] == pytest.approx([line[name] for line in here], rel=1e-4, abs=1e-6), name
    assert here[0]["teacher/kl"] != 0


def test_a_run_whose_teacher_fails_goes_on_where_it_was(tmp_path):
    tiny, told = tiny_teacher(), []

    def dies(answer, body):
        told.append(body)
        return answer if len(told) <= 1 + 8 + 3 else Response("{}", 500)

    with served(Teacher(tiny)) as (client, server):
        teacher = {"path": NAME, "url": server.url, "retries": 0}
        whole = numbers(train(tmp_path / "whole", teacher=teacher, **TAUGHT, **STEPS).folder)
        with served(Teacher(tiny, change=dies)) as (_, dying), pytest.raises(TeacherFailed, match="HTTP 500"):
            train(tmp_path / "run", teacher=teacher | {"url": dying.url}, **TAUGHT, **STEPS)
        saved = {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()}
        assert saved == {"good", "step_000001"}  # before the batch
        again = train(tmp_path / "run", resume=True, teacher=teacher, **TAUGHT, **STEPS)
    assert numbers(again.folder) == whole and len(whole) == 2


def every_second(prompts, completions, **columns):
    return [None if i % 2 else float(i % 4 == 0) for i in range(len(completions))]


def test_completions_without_a_reward_are_not_read_but_logged(tmp_path):
    with served(Teacher(tiny_teacher())) as (client, server):
        changes = TAUGHT | {"log": {"token_rollouts": 8}} | STEPS | {"train": {"steps": 1}}
        run = train(tmp_path / "run", reward=every_second, teacher={"path": NAME, "url": server.url}, **changes)
        assert len(server.asked) == 1 + 4
    assert ["log_ratio" in line for line in lines(run.folder / "rollouts.jsonl")] == [True] * 8
