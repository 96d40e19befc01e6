from gspo.eval import page
from tests.eval.test_results import made

MANIFEST = {"benchmark": "aime24", "title": "AIME'24", "model": "<b>m</b>", "samples": 1, "scoring": {"sandbox": "none"}}


def test_one_reply_a_problem_draws_no_estimates(tmp_path):
    rows, found, _, _ = made(n=1)
    text = page.write(tmp_path, MANIFEST, found, rows, ["It is <better>."]).read_text()
    assert "Programs ran in no sandbox." in text and "It is &lt;better&gt;." in text and "<b>m</b>" not in text
    assert text.count("<figure ") == 1 and "Several replies" not in text
    assert "2 problems, 1 reply each" in text and "an interval needs 2 replies to a problem" in text
