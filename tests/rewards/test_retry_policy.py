from gspo.rewards.retry_policy import SKIPPED, CallMode

FAILED, FINE = (None, "ValueError: x"), (1.0, None)


def said(results, late=False):
    way = CallMode()
    way.failed(len(results), "took longer than 1 s" if late else "ValueError: x", late)
    (text,) = way.news(results)
    assert way.news(results) == []
    return text


def test_all_are_those_that_were_tried():
    assert ". All of these failed too. Mend the function" in said([FAILED] * 3)
    skipped = None, f"{SKIPPED}2 calls before it hung or crashed"
    text = said([FAILED] * 2 + [skipped] * 5, late=True)
    assert ". All 2 completions that were tried failed too. Raise reward.timeout, or mend the function" in text


def test_one_that_fares_better_shows_that_others_are_to_blame():
    assert said([FAILED, FINE]).endswith("Make the function handle a single bad completion, by returning None for it")


def test_each_kind_of_failure_is_told_once():
    way = CallMode()
    for late in (False, True, False, True):
        way.failed(2, "why", late)
    assert len(way.news([FAILED])) == 2
    way.failed(2, "why", late=True)
    assert way.news([FAILED]) == []
