"""The first demo's cold start: arithmetic that is right, honest guesses, and no question that is held out."""

import random
import re

import pytest

from gspo.backends.hf.tiny import longest_match_tokenizer
from gspo.config.rollout import TaskConfig
from gspo.data.loaders import generate
from gspo.demo import count_bits


def test_working_out_by_hand():
    said = count_bits.work_out(5, random.Random(0), slip=0.0)
    assert said == "<think>5 odd 1; 2 even 1; 1 odd 2</think><answer>2</answer>"


@pytest.mark.parametrize("n", [1, 2, 255, 256, 1000])
def test_without_slips_it_is_right_and_with_them_it_says_what_it_counted(n):
    assert f"<answer>{n.bit_count()}</answer>" in count_bits.work_out(n, random.Random(0), slip=0.0)
    slipped = count_bits.work_out(n, random.Random(0), slip=1.0)
    *_, last = re.findall(r"(?:odd|even) (\d+)", slipped)
    assert slipped.endswith(f"<answer>{last}</answer>")


def test_a_cold_start():
    made = count_bits.cold_start(200, 1, 60, worked=0.5, slip=0.0, seed=3, held_out=20)
    assert len(made) == 200
    task = TaskConfig(source=count_bits.TASK, config={"min_n": 1, "max_n": 60}, seed=3)
    held_out = {row["question"] for _, row in generate(count_bits.TASK, task, 0, 20)[1]}
    assert len(held_out) == 20 and not held_out & {row["prompt"] for row in made}
    worked = count_bits.worked([], [row["completion"] for row in made])
    assert 60 < sum(worked) < 140
    for row, by_work in zip(made, worked):
        n = int(re.search(r"number (\d+)", row["prompt"])[1])
        if by_work:
            assert row["completion"].endswith(f"<answer>{n.bit_count()}</answer>")
        else:
            assert row["completion"].startswith(count_bits.GUESS)


def test_the_pieces_spell_all_that_is_said():
    tokenizer = longest_match_tokenizer(count_bits.PIECES)
    rng = random.Random(0)
    for n in rng.sample(range(1, 1000), 50):
        for completion in (count_bits.work_out(n, rng, slip=0.1), count_bits.guess(1, 1000, rng)):
            text = count_bits.QUESTION.format(n) + completion
            assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text
