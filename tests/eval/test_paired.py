import json
import math

import numpy as np
import pytest

from gspo.eval.manifest import NAME
from gspo.eval.paired import check, compared, correct_of, paired
from gspo.eval.replies import Lines, Mark

NAMES = ("new", "old")


def test_differences_are_paired_by_problem():
    old = {str(i): i for i in range(30)}  # problems of very different difficulty
    new = {name: c + 2 for name, c in old.items()}
    found = paired(new, 32, old, 32, NAMES)
    assert found.like.mean == pytest.approx(2 / 32)
    assert found.like == found.these  # every problem gained as much: what is left is the noise of sampling
    assert found.words.endswith("these: new is better than old by +6.2 [+2.4, +10.0] points at 30 problems.")
    found = paired({"a": 0, "b": 32, "c": 17}, 32, {"a": 32, "b": 0, "c": 16}, 32, NAMES)  # problems disagree
    assert "no difference resolvable at 3 problems" in found.words and not found.like.resolved


def test_what_holds_for_these_problems_alone_is_said_so():
    old = {str(i): 8 for i in range(10)}
    new = {str(i): 40 if i < 4 else 4 for i in range(10)}
    found = paired(new, 64, old, 64, NAMES)
    assert found.these.resolved and not found.like.resolved
    assert "Over these problems alone it is higher" in found.words


@pytest.mark.parametrize("problems, n", [(2, 2), (5, 2), (5, 16), (30, 4)])
@pytest.mark.parametrize("chances", [(0.7, 0.7), (0.2, 2.0), (5.0, 1.0)])
def test_the_interval_over_these_problems_covers(problems, n, chances):
    """The difference of the true chances, also with few problems, few replies, and chances near 0 or 1."""
    draw, covered = np.random.default_rng(0), 0
    for _ in range(300):
        old = draw.beta(*chances, problems)
        new = np.clip(old + draw.normal(0, 0.15, problems), 0, 1)
        right = [dict(enumerate(draw.binomial(n, side).tolist())) for side in (new, old)]
        these = paired(right[0], n, right[1], n, NAMES).these
        covered += these.low - 1e-12 <= (new - old).mean() <= these.high + 1e-12
    assert covered / 300 > 0.92


def test_few_problems_or_replies_are_not_certain():
    for n in (1, 2, 3):
        found = paired({"a": n, "b": n}, n, {"a": 0, "b": 0}, n, NAMES)
        assert found.like.high == 1 and found.like.low < 0.9
        assert paired({"a": 1}, n, {"a": 0}, n, NAMES).words.endswith("no verdict.")
    found = paired({"a": 1, "b": 0}, 1, {"a": 0, "b": 0}, 1, NAMES)
    assert math.isnan(found.these.low) and found.like.mean == 0.5


def evaluation(folder, model, right, sha="1", problems=2, n=2, sampling=0):
    folder.mkdir()
    this = {"benchmark": "aime24", "model": model, "samples": n, "data": {"sha256": sha, "problems": problems}}
    (folder / NAME).write_text(json.dumps(this | {"sampling": sampling}))
    with Lines(folder / "marks.jsonl", Mark) as marks:
        for i, good in enumerate(right):
            marks.add(Mark("ab"[i // n], i % n, good))
    return folder


def test_two_folders_compare(tmp_path):
    one = evaluation(tmp_path / "one", "m1", [True, True, False, True])
    other = evaluation(tmp_path / "other", "m2", [True, False, False, True], sampling=1)
    assert correct_of(one)[1] == {"a": 2, "b": 1}
    found = compared(one, other)
    assert found.like.mean == 0.25 and "m1" in found.words and "m2" in found.words
    assert found.differs == ["sampling"] and "They differ also in sampling." in found.words


def test_folders_that_do_not_compare_are_refused(tmp_path):
    one = evaluation(tmp_path / "one", "m", [True] * 4)
    this = json.loads((one / NAME).read_text())
    with pytest.raises(ValueError, match="its problems are others"):
        check(this, evaluation(tmp_path / "two", "m", [True] * 4, sha="2"))
    with pytest.raises(ValueError, match="is not finished: 3 of 2 x 2 replies"):
        check(this, evaluation(tmp_path / "three", "m", [True] * 3))
    with pytest.raises(ValueError, match="is not the folder of an evaluation"):
        check(this, tmp_path / "nowhere")
