"""The lengths and micro-batches that `gspo plan` plans for."""

import pytest

from gspo.plan.cost_model import Work
from gspo.plan.memory import MicroBatch
from gspo.plan.plan import checked, render
from gspo.plan.work import Lengths, lengths_of, work_of
from tests.plan.test_plan import LENGTHS, config
from tests.public_models import folder_of


def test_what_the_fullest_rank_reads():
    # 2 updates of 8 prompts x 4 completions on 8 ranks: 4 completions of 256 tokens a rank, which one micro-batch takes
    assert work_of(checked(config("m")), 8, LENGTHS) == (Work(2, 0, 2 * 4 * 256, 0), MicroBatch(4 * 256, 4 * 156, 1))
    # 2 epochs; likelihoods of the whole batch, 8 completions a rank in 2 micro-batches, by the policy and the reference
    more = {"algorithm": {"mini_batches": 2, "epochs": 2, "old_logprobs": "recompute", "beta": 0.1}}
    assert work_of(checked(config("m", **more)), 8, LENGTHS)[0] == Work(4, 4, 4 * 4 * 256, 2 * 8 * 256)
    more["algorithm"] |= {"name": "grpo", "old_logprobs": "sampler", "beta": 0.0}
    for where, passes in (({}, 1), ({"url": "http://127.0.0.1:1"}, 0)):  # a teacher's here, or not
        taught = checked(config("m", teacher={"path": "t"} | where, **more))
        assert work_of(taught, 8, LENGTHS)[0] == Work(4, passes * 2, 4 * 4 * 256, passes * 8 * 256)
    # a prompt is read once by each rank that has completions of it
    shared = config("m", train={"micro_batch_tokens": 1024, "layout": "shared"})
    assert work_of(checked(shared), 8, LENGTHS) == (Work(2, 0, 2 * 724, 0), MicroBatch(724, 4 * 156, 1))
    # 3 ranks: 11 of 32 completions, in micro-batches of 4
    assert work_of(checked(config("m")), 3, LENGTHS) == (Work(2 * 3, 0, 2 * 11 * 256, 0), MicroBatch(1024, 4 * 156, 3))


def test_lengths_beyond_the_context_are_refused(tmp_path):
    made = config(folder_of(tmp_path, "30B-A3B"))  # reads 32,768 tokens
    assert lengths_of(made, None, None) == Lengths(512) and lengths_of(made, None, 32_700) == Lengths(68, 32_700)
    for prompt, completion in ((None, 32_768), (None, 10**7), (100, 32_700), (32_768, None), (10**7, 1)):
        with pytest.raises(ValueError, match=r"do not fit the model's context of 32768: lower one"):
            lengths_of(made, prompt, completion)


def test_all_turns_of_an_agent_are_counted(tmp_path):
    path, few = folder_of(tmp_path, "30B-A3B"), {"max_completion_length": 200}
    made, plain = config(path, task={"environment": "some:Shop", "max_turns": 3}, rollout=few), config(path, rollout=few)
    assert [Lengths(n).longest(made) for n in (100, 32_468, 32_568)] == [600, 300, 200]  # the context ends at 32,768
    assert Lengths(100, 150).longest(made) == 150 and Lengths(100).longest(plain) == 200
    assert work_of(checked(made), 1, Lengths(100)) == work_of(checked(plain), 1, Lengths(100, 600))
    assert "all of 600 in up to 3 turns, without what the environment answers" in render(made, Lengths(100), None)[0]
