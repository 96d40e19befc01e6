from itertools import pairwise

import pytest

from gspo.config.rewards import RewardConfig
from gspo.config.rollout import TaskConfig
from gspo.data import reasoning_gym
from gspo.rewards import graders
from tests import conftest
from tests.data.tools import load

factory = pytest.importorskip("reasoning_gym.factory")
NO_GOLD = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}  # no right answer given
ANY_ANSWER = {"game_of_life_halting"}  # its scorer pays 1 for whatever it is given
OTHERS_FIT = {
    "n_queens"  # another item's board may well fit this one's
}
SLOW = {
    "intermediate_integration", "knight_swap", "sokoban", "futoshiki", "arc_agi", "zebra_puzzles", "codeio", "figlet_font",
    "group_anagrams", "polynomial_equations", "puzzle24", "simple_integration", "word_ladder",
}  # fmt: skip
QUICK = sorted(set(factory.DATASETS) - {"composite"} - SLOW)


def items(name, count=3, **config):
    dataset = reasoning_gym.open_task(f"reasoning_gym:{name}", config, 11, count)
    entries = []
    for i in range(count):
        reasoning_gym._seed_globals(i)
        entries.append(dataset[i])
    return entries


def scorer(name, **config):
    source = f"reasoning_gym:{name}"
    score = graders.load("task", RewardConfig(), TaskConfig(source=source, config=config)).score
    return lambda completion, entry: score(graders.RewardInput(entry["question"], completion, source, entry))


@pytest.mark.parametrize("half", [0, 1])  # each takes less than a second
def test_the_right_answer_scores_1_and_a_mutant_does_not(half, subtests):
    for name in QUICK[half::2]:
        with subtests.test(name=name):
            conftest.seed()
            check_scores(name)


def check_scores(name):
    score, entries = scorer(name), items(name)
    for entry in entries:
        gold = entry["answer"]
        assert score("<answer></answer>", entry) == score("no tags", entry) == 0
        if name in NO_GOLD:
            assert gold is None
            continue
        assert score(f"<think><answer>no</answer></think> so <answer> {gold} </answer>", entry) == 1
        assert score(gold, entry) == 0
        assert score(f"<think><answer>{gold}</answer>", entry) == 0  # it never stopped thinking
        if name in ANY_ANSWER:
            assert score("<answer>junk</answer>", entry) == 1
            continue
        assert score("<answer>I do not know</answer>", entry) < 0.5
        for other in entries:
            if other["answer"] != gold and name not in OTHERS_FIT:
                assert score(f"<answer>{other['answer']}</answer>", entry) < 1


def generate(name, num_prompts=8, size=16, seed=0, note=print, **config):
    return reasoning_gym.generate(reasoning_gym.ItemsRequest(f"reasoning_gym:{name}", config, seed, size, num_prompts), note)


def test_prompts():
    train, held_out = load("count_bits")
    assert [p.id for p in train] == [f"train-{i}" for i in range(16)]
    assert [p.id for p in held_out] == [f"eval-{i}" for i in range(8)]
    assert train[0].columns["question"] == train[0].messages
    assert {"answer", "metadata"} < set(train[0].columns)
    assert train[0].task == "reasoning_gym:count_bits"


def test_items_are_distinct_within_and_across_and_the_same_each_time():
    small = {"num_prompts": 30, "size": 60, "min_n": 1, "max_n": 100}
    train, held_out = generate("count_bits", **small)
    assert len({entry["question"] for entry in train + held_out}) == 90
    assert (train, held_out) == generate("count_bits", **small)
    assert generate("count_bits", seed=1, **small)[0] != train


def test_a_task_that_uses_global_random_state_is_the_same_each_time():
    assert load("list_functions") == load("list_functions")


def test_seed_ranges_never_overlap(monkeypatch):
    opened = []
    real = reasoning_gym.open_task

    def spy(source, config, seed, size):
        opened.append(range(seed, seed + size))
        return real(source, config, seed, size)

    monkeypatch.setattr(reasoning_gym, "open_task", spy)
    monkeypatch.setattr(reasoning_gym, "CHUNK", 7)
    for seed in (0, 1, 1023):
        generate("count_bits", seed=seed, size=30, num_prompts=30)
    spans = sorted((r.start, r.stop) for r in opened)
    assert all(stop <= start for (_, stop), (start, _) in pairwise(spans))
    assert spans[-1][1] < 2**32  # numpy's largest seed


def test_several_tasks_at_once():
    train, _ = generate("composite", datasets=[{"name": "gcd"}, {"name": "lcm", "weight": 2.0}])
    assert {entry["metadata"]["source_dataset"] for entry in train} == {"gcd", "lcm"}


def test_bad_tasks(subtests):
    for options, message in (
        ({"max_n": 0}, "count_bits refuses it: .*min_n must be between"),
        ({"max_n": "many"}, "count_bits refuses it: TypeError"),
        ({"max_n": 20}, r"only \d+ of the 64 held-out items asked for are distinct; lower eval.num"),
        ({"max_n": 64}, "the 64 held-out items leave no other item to train on"),
        ({"seed": 3}, r"task\.config\.seed: count_bits has no such option"),
    ):
        request = reasoning_gym.ItemsRequest("reasoning_gym:count_bits", options, 0, 16, 64)
        with subtests.test(message), pytest.raises(ValueError, match=message):
            reasoning_gym.generate(request, print)


def test_fewer_training_items_than_asked_for_is_noted():
    notes = []
    train, _ = generate("count_bits", max_n=20, note=notes.append)
    assert len(train) == 12
    assert notes == ["reasoning_gym:count_bits: only 12 of the 16 training items asked for are distinct"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("game_of_life_halting", "pays 1.00 on average for the completion 'I do not know'"),
        ("puzzle24", "pays 1.00 on average for the right answer to another item"),
    ],
)
def test_a_scorer_that_pays_for_junk_is_noted(name, message):
    notes = []
    dataset = reasoning_gym.open_task(f"reasoning_gym:{name}", {}, 0, 1)
    reasoning_gym.check(name, dataset, items(name, 8), notes.append)
    assert len(notes) == 1 and message in notes[0]


class Stub:
    """A task whose scorer is made to order."""

    def __init__(self, score):
        self.score_answer = score


def test_scores_are_guarded():
    assert reasoning_gym.score(Stub(lambda answer, entry: 1 / 0), "x", {}) == 0
    assert reasoning_gym.score(Stub(lambda answer, entry: 3), "x", {}) == 1
    assert reasoning_gym.score(Stub(lambda answer, entry: -3), "x", {}) == 0
    with pytest.raises(ValueError, match="the task's scorer returned nan"):
        reasoning_gym.score(Stub(lambda answer, entry: float("nan")), "x", {})


def test_a_broken_scorer_is_found_at_load():
    notes = []
    entries = [{"answer": str(i)} for i in range(4)]
    with pytest.raises(ValueError, match="gives none of 4 right answers 1"):
        reasoning_gym.check("t", Stub(lambda answer, entry: 0.5), entries, notes.append)
    reasoning_gym.check("t", Stub(lambda answer, entry: answer == entry["answer"] != "3"), entries, notes.append)
    assert notes == ["t: its scorer gives 1 of 4 right answers less than 1"]
