from multiprocessing import Pipe

import pytest

from gspo.data import reasoning_gym
from gspo.data.reasoning_gym_worker import generate
from tests.data.tools import load

pytest.importorskip("reasoning_gym")


def test_errors_come_out_of_the_process_that_makes_the_items():
    with pytest.raises(ValueError, match="reasoning-gym has no such task, did you mean count_bits"):
        load("cuont_bits")


def test_warnings_come_out_of_the_process_that_makes_the_items():
    with pytest.warns(UserWarning) as heard:
        load("game_of_life_halting", system=None)
    texts = [str(w.message) for w in heard]
    assert "between <answer> and </answer>: say so in task.system" in texts[0]
    assert "pays 1.00 on average" in texts[1]


def heard(source, train=4, held_out=2, **config):
    """What is sent for a task, in order."""
    ours, theirs = Pipe()
    generate(theirs, reasoning_gym.ItemsRequest(source, config, 0, train, held_out))
    theirs.close()
    found = []
    while ours.poll():
        try:
            found.append(ours.recv())
        except EOFError:
            break
    return found


def test_the_items_come_last_and_are_those_of_the_task():
    *notes, (kind, (train, held_out)) = heard("reasoning_gym:count_bits", max_n=20)
    assert kind == "items" and (len(train), len(held_out)) == (4, 2)
    assert all(note == "note" for note, _ in notes)
    assert all(item["answer"] == str(int(item["metadata"]["number"]).bit_count()) for item in train + held_out)


def test_what_goes_wrong_is_one_message():
    ((kind, text),) = heard("reasoning_gym:count_bits", mxa_n=3)
    assert kind == "error" and "task.config.mxa_n: count_bits has no such option, did you mean max_n" in text
