"""What ranks say to one another, and how they notice that one is gone."""

import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed import distributed_c10d

from gspo.backends.vllm.errors import EngineError
from gspo.distributed.ranks import OneRank, RankLost, noticed, whole
from gspo.interfaces import RewardsFailed, SamplerError
from tests.patience import PATIENCE
from tests.together import sent, together

GONE = "Connection closed by peer [127.0.0.1]:53633. This is typically caused by a remote worker crashing"  # says gloo


def talk(ranks):
    command = ranks.broadcast_command({"do": torch.arange(3)} if ranks.number == 0 else None)
    return ranks.number, ranks.size, ranks.gathered(ranks.number**2), ranks.any(ranks.number == 1), ranks.any(False), command


def test_every_rank_hears_all_and_the_leader_tells():
    for number, (mine, size, squares, one, none, command) in enumerate(together(talk, 3)):
        assert (mine, size, squares, one, none) == (number, 3, [0, 1, 4], True, False)
        assert command["do"].tolist() == [0, 1, 2]


def hands_over(ranks):
    """What the leader gets of tensors of all kinds, and each rank of the leader's."""
    mine = {"n": torch.full((ranks.number, 2), ranks.number), "half": torch.ones(3).bfloat16() * ranks.number}
    mine |= {"yes": torch.tensor([True, False]), 7: torch.arange(6).to(torch.int16).view(2, 3).T} if ranks.number else {}
    got = ranks.to_leader(mine)
    parts = [{i: torch.full((2, i), i, dtype=torch.int16) for i in range(number)} for number in range(3)]
    with sent() as count:
        part = ranks.from_leader(parts if ranks.number == 0 else [])
    return got, part, count["tensors"]


def test_tensors_go_from_one_to_one():
    (got, first, count), (one, second, _), (two, third, _) = together(hands_over, 3)
    assert [sorted(map(str, each)) for each in got] == [["half", "n"], *[["7", "half", "n", "yes"]] * 2] and one == two == []
    for number, each in enumerate(got):
        assert each["n"].tolist() == [[number] * 2] * number and each["half"].tolist() == [number] * 3
        assert each["half"].dtype == torch.bfloat16
    assert got[2][7].tolist() == [[0, 3], [1, 4], [2, 5]] and got[1]["yes"].tolist() == [True, False]
    assert (first, second[0].numel(), list(third)) == ({}, 0, [0, 1]) and third[1].tolist() == [[1], [1]]
    assert third[1].dtype == torch.int16 and count == 4  # an empty one is not sent


def test_a_process_alone_says_it_to_itself():
    alone = OneRank()
    assert (alone.number, alone.size, alone.gathered("x"), alone.any(True), alone.any(False)) == (0, 1, ["x"], True, False)
    x = torch.ones(2)
    assert alone.to_leader({"x": x}) == [{"x": x}] and alone.from_leader([{"x": x}]) == {"x": x}
    assert whole(torch.ones(2)).tolist() == [1, 1]


LIMIT = 1.5  # seconds


def lost_by_the_first(ranks, hangs, act):
    """What the first rank notices when the second is gone, or silent until it has noticed, and after how long. Where it is
    silent, they wait for LIMIT seconds from here on, and no longer; else as long as ever, and nobody does.
    """
    if hangs:
        ranks.timeout = LIMIT
        ranks.loaded()
    store = distributed_c10d._get_default_store()
    if ranks.number == 1:
        if hangs:
            store.wait(["noticed"], timedelta(seconds=PATIENCE))
        return None  # and its process ends
    begin = time.monotonic()
    try:
        with noticed():
            act()
    except RankLost as error:
        return str(error), time.monotonic() - begin
    finally:
        store.set("noticed", "")
    return None


def loses_after_loading(ranks):
    """The same in a group that the model has made, once it is loaded."""
    group = dist.new_group(timeout=timedelta(seconds=PATIENCE))
    return lost_by_the_first(ranks, True, lambda: dist.all_reduce(torch.ones(1), group=group))


def test_groups_of_the_model_have_the_limit_once_it_is_loaded():
    assert "did not answer in time" in together(loses_after_loading, 2)[0][0]


def loads_slowly(ranks):
    if ranks.number == 1:
        time.sleep(6)
    x = torch.ones(1)
    dist.all_reduce(x)
    return float(x)


def test_ranks_wait_longer_for_one_that_loads():
    assert together(loads_slowly, 2, waits=5.0) == [2.0, 2.0]


def test_other_errors_pass():
    with pytest.raises(ValueError, match="mine"), noticed():
        raise ValueError("mine")
    with pytest.raises(RuntimeError, match="out of memory"), noticed():
        raise RuntimeError("out of memory")
    assert not dist.is_initialized()


def test_an_error_that_quotes_the_loss_of_another_group_is_none():
    """Of an engine's group with the trainer, or of the engine's own ranks: no rank of the run is gone."""
    said = f"[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] {GONE}"
    quoting = (
        f"vLLM ended with status 1: /tmp/igloo/vllm.log says: {said}",
        f"vLLM ended with status 1: torch.distributed.DistBackendError: NCCL error in: {said}",
        "/home/igloo/model cannot be read",
    )
    for error in (EngineError(said), SamplerError(quoting[0]), RewardsFailed(quoting[1]), *map(RuntimeError, quoting)):
        with pytest.raises(type(error)) as caught, noticed():
            raise error
        assert caught.value is error


NCCL = """NCCL error in: /pytorch/NCCLUtils.cpp:94, unhandled system error (run with NCCL_DEBUG=INFO), NCCL 2.27.5
ncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error.
Last error:
"""


@pytest.mark.parametrize(
    "last, why",
    [
        ("Error while creating shared memory segment\n/dev/shm/nccl-9wx8Nb: No space left on device (28)", None),
        ("", NCCL.partition("\n")[0]),
    ],
)
def test_nccl_is_quoted_with_its_own_reason(last, why):
    with pytest.raises(RankLost) as caught, noticed():
        raise dist.DistBackendError(NCCL + last)
    assert str(caught.value) == f"rank 0: NCCL failed ({why or last.replace(chr(10), ' ')})"


def loses(ranks, way, hangs):
    """What the first rank notices when the second is gone, or silent, in each way in which ranks talk."""
    # What is sent from one to one keeps the limit with which the group was made.
    group = dist.new_group(timeout=timedelta(seconds=5.0 if hangs and way == "send" else ranks.timeout))
    x = torch.ones(1000)
    dist.all_reduce(x, group=group)
    made = {
        "gather": lambda: ranks.gathered("still there"),
        "reduce": lambda: dist.all_reduce(x, group=group),
        "broadcast": lambda: dist.broadcast(x, 1, group=group),
        "send": lambda: [dist.send(torch.ones(4_000_000), 1, group=group) for _ in range(50)],
        "functional": lambda: float(functional.all_reduce(x, "sum", group).sum()),
        "new group": lambda: dist.new_group(timeout=timedelta(seconds=LIMIT)),  # by which alone it notices
    }
    return lost_by_the_first(ranks, hangs, made[way])


@pytest.mark.parametrize(
    ("way", "hangs"),
    [(way, False) for way in ("gather", "reduce", "broadcast", "send", "functional", "new group")]
    + [("gather", True), ("reduce", True), ("send", True)],
)
def test_a_rank_that_is_gone_or_silent_is_noticed(way, hangs):
    """Whatever torch words it like."""
    text, seconds = together(loses, 2, way, hangs)[0]
    assert text.startswith("rank 0: another rank is gone or did not answer in time")
    assert seconds > 0.9 * LIMIT or not hangs
