from types import SimpleNamespace

import pytest

from gspo.data import reasoning_gym
from gspo.data.reasoning_gym_worker import generate
from gspo.workers.json_codec import packed, unpacked
from tests.data.tools import load
from tests.logged import logs

pytest.importorskip("reasoning_gym")


def test_warnings_come_out_of_the_process_that_makes_the_items():
    with logs() as heard:
        load("game_of_life_halting")
    (text,) = heard
    assert "pays 1.00 on average" in text


def heard(source, train=4, held_out=2, **config):
    """What is sent for a task, in order."""
    sent = []
    connection = SimpleNamespace(send_bytes=lambda data: sent.append(unpacked(data)))
    generate(connection, reasoning_gym.ItemsRequest(source, config, 0, train, held_out))
    return sent


def test_the_items_come_last_and_are_those_of_the_task():
    messages = heard("reasoning_gym:count_bits", max_n=20)
    kinds = [kind for kind, _ in messages]
    assert kinds == ["note"] * kinds.count("note") + ["train"] * 4 + ["held out"] * 2 + ["end"]
    items = [item for kind, item in messages if kind in ("train", "held out")]
    assert all(item["answer"] == str(int(item["metadata"]["number"]).bit_count()) for item in items)


@pytest.mark.parametrize("name", ["graph_color", "knights_knaves", "codeio", "chain_sum"])
def test_items_keep_their_types(name):
    """Tuples, numbers as keys, and numbers and texts of numpy: scorers compare with them."""
    dataset = reasoning_gym.open_task(f"reasoning_gym:{name}", {}, seed=1, size=4)
    for entry in map(dict, dataset):
        found = unpacked(packed(entry))
        assert found == entry and plain(found) == plain(entry)


def plain(value):
    """A value with the types of all that is in it; numpy's own numbers and texts as Python's."""
    if isinstance(value, dict):
        return [(plain(key), plain(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [plain(item) for item in value]
    return next((kind for kind in (bool, int, float, str) if isinstance(value, kind)), type(value)), value


def test_what_goes_wrong_is_one_message():
    ((kind, text),) = heard("reasoning_gym:count_bits", mxa_n=3)
    assert kind == "error" and "task.config.mxa_n: count_bits has no such option, did you mean max_n" in text
