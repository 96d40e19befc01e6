from gspo.rewards.graders import CallFailed
from gspo.rewards.retry_policy import SKIPPED, CallMode

FAILED, FINE = (None, "ValueError: x"), (1.0, None)


def said(results, late=False):
    mode = CallMode()
    mode.failed(len(results), "completion", CallFailed("took longer than 1 s" if late else "ValueError: x", late))
    (text,) = mode.news(results)
    assert mode.news(results) == []
    return text


def test_all_are_those_that_were_tried():
    assert ". All of these failed too. Mend the function" in said([FAILED] * 3)
    skipped = None, f"{SKIPPED}2 calls before it hung or crashed"
    text = said([FAILED] * 2 + [skipped] * 5, late=True)
    assert ". All 2 completions that were tried failed too. Raise reward.timeout, or mend the function" in text


def test_one_that_fares_better_shows_that_others_are_to_blame():
    assert said([FAILED, FINE]).endswith("Make the function handle a single bad completion, by returning None for it")


def test_each_kind_of_failure_is_told_once():
    mode = CallMode()
    for late in (False, True, False, True):
        mode.failed(2, "prompt", CallFailed("why", late))
    assert len(mode.news([FAILED])) == 2
    mode.failed(2, "prompt", CallFailed("why", late=True))
    assert mode.news([FAILED]) == []
