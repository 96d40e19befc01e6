from gspo.eval import page
from tests.eval.test_results import made

MANIFEST = {"benchmark": "aime24", "title": "AIME'24", "model": "<b>m</b>", "samples": 4, "scoring": {"sandbox": "bwrap"}}


def test_the_page_tells_figures_intervals_and_problems(tmp_path):
    rows, found, _, _ = made()
    text = page.write(tmp_path, MANIFEST, found, rows, ["It is <better>."]).read_text()
    assert "Programs ran in the sandbox &#39;bwrap&#39;." in text
    assert "37.5 %" in text and "over these problems" in text and "pass@k" in text and "maj@4" in text
    assert "It is &lt;better&gt;." in text and "<b>m</b>" not in text
    assert text.count("<figure ") == 2 and (tmp_path / "figures/problems.svg").exists()


def test_one_reply_a_problem_draws_no_estimates(tmp_path):
    rows, found, _, _ = made(n=1)
    text = page.write(tmp_path, MANIFEST | {"scoring": {"sandbox": "none"}}, found, rows).read_text()
    assert "Programs ran in no sandbox." in text
    assert text.count("<figure ") == 1 and "Several replies" not in text
    assert "2 problems, 1 reply each" in text and "an interval needs 2 replies to a problem" in text
