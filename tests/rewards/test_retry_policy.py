from gspo.rewards.graders import CallFailed
from gspo.rewards.retry_policy import CallMode


def test_each_kind_of_failure_is_told_once():
    mode = CallMode()
    for late in (False, True, False, True):
        mode.failed(2, "prompt", CallFailed("why", late))
    failed, late = mode.news
    assert failed.startswith("a call for 2 completions failed (why), so each prompt got a call of its own. Mend")
    assert late.startswith("a call for 2 completions why, so from now on each prompt gets a call of its own. Raise")
