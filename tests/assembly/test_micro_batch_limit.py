"""A rank that has no memory for its micro-batch: its real forward pass ends as torch ends it."""

import json

import pytest

from gspo.assembly.micro_batch_limit import UNTIL, conditions, keep, micro_batches_of
from gspo.config.files import as_config
from gspo.config.schema import Config
from gspo.distributed.ranks import OneRank
from gspo.learner.memory import OutOfMemory
from gspo.runs.folder import SMALLER, RunFolder
from gspo.runs.log import recorded
from tests.launch.started import apart, begin, completions, finished

FORWARD = "gspo.backends.hf.policy:HFPolicy.forward"


class TwoRanks(OneRank):
    size = 2


def limited(config, ranks=None):
    """The limit of micro-batches, and what is warned of."""
    heard = []
    with recorded(heard.append):
        parts = micro_batches_of(config, ranks or TwoRanks())
    return parts.max_tokens, *(record.getMessage().partition(": ")[0] for record in heard)


def warned(place, name):
    events = map(json.loads, (place / name / "events.jsonl").read_text().splitlines())
    return [event["text"] for event in events if event["kind"] == "warning" and "micro-batches" in event["text"]]


@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_a_run_whose_rank_has_too_little_memory_goes_on_with_smaller_micro_batches(place, unbroken, victim):
    name, fault = f"short-{victim}", ("tokens", victim, FORWARD, 5, 30)
    process = begin(place, name, "--scale.ranks=2", "--train.steps=6", faults=[fault] * 4)
    status, output = finished(process)
    assert status == 0, output
    restarts = output.count(f"rank {victim} was out of memory, and micro-batches become smaller: the run goes on")
    assert 1 <= restarts <= 3, output
    assert completions(place, name) == completions(place, unbroken)
    assert apart(place, name, unbroken) < 1e-6
    found = json.loads((place / name / SMALLER).read_text())
    assert found["tokens"] < 60 and found["asked"] == Config().train.micro_batch_tokens and found["ranks"] == 2
    assert warned(place, name)[-1] == (
        f"{found['why']}: micro-batches have at most {found['tokens']} tokens, until train.micro_batch_tokens, the number "
        "of ranks, scale.expert_parallel or scale.data_parallel_replicas changes"
    )
    assert f"rank {victim} was out of memory with a micro-batch" in (place / name / "report.html").read_text()
    again = ("tokens", victim, FORWARD, 1, found["tokens"])
    status, output = finished(begin(place, name, "--resume", "--scale.ranks=2", "--train.steps=8", faults=[again]))
    assert status == 0 and "restart" not in output, output


def test_a_run_whose_shortest_completion_does_not_fit_ends(place):
    fault = "tokens", 1, FORWARD, 5, 2
    process = begin(place, "no-room", "--scale.ranks=2", "--train.steps=6", "--scale.restarts=10", faults=[fault] * 11)
    status, output = finished(process)
    assert status == 1 and "gspo: error: out of memory with one completion of" in output, output
    assert "scale.ranks" in output and output.count("restart ") <= 6


def test_what_is_kept_holds_for_the_same_settings_on_as_many_ranks(tmp_path):
    """The warning names all that ends it: each of them does, and there are no others."""
    config, asked = as_config(Config(), {"log": {"dir": str(tmp_path)}}), Config().train.micro_batch_tokens
    keep(config, TwoRanks(), OutOfMemory("rank 1 was out of memory", 100))
    assert limited(config) == (100, "rank 1 was out of memory")
    assert limited(config, OneRank()) == (asked,)
    others = {
        "train.micro_batch_tokens": {"train": {"micro_batch_tokens": 5000}},
        "scale.expert_parallel": {"scale": {"expert_parallel": 2}},
        "scale.data_parallel_replicas": {"scale": {"data_parallel_replicas": 2}},
    }
    for key, change in others.items():
        changed = as_config(config, change)
        assert key in UNTIL and limited(changed) == (changed.train.micro_batch_tokens,), key
    assert len(conditions(config, TwoRanks())) == len(others) + 1 == len(UNTIL.replace(" or ", ", ").split(", "))


def test_what_is_kept_before_the_folder_exists_is_there_when_the_run_begins(tmp_path):
    config = as_config(Config(), {"log": {"dir": str(tmp_path / "runs" / "new")}})
    keep(config, TwoRanks(), OutOfMemory("rank 1 was out of memory", 100))
    assert limited(config)[0] == 100
    with RunFolder.create(config.log.dir, "") as folder:  # it is taken for a new one
        assert (folder.path / SMALLER).exists()
