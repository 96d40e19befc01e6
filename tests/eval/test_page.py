from gspo.eval import page
from tests.eval.test_results import made

MANIFEST = {"benchmark": "aime24", "title": "AIME'24", "model": "<b>m</b>", "samples": 4}


def test_the_page_tells_figures_intervals_and_problems(tmp_path):
    rows, found, _, _ = made()
    path = page.write(tmp_path, MANIFEST, found, rows, ["It is <better>."])
    text = path.read_text()
    assert "37.5 %" in text and "over these problems" in text and "pass@k" in text and "maj@4" in text
    assert "It is &lt;better&gt;." in text and "<b>m</b>" not in text
    assert text.count("<figure>") == 2 and (tmp_path / "figures/problems-dark.png").exists()


def test_one_reply_a_problem_draws_no_estimates(tmp_path):
    rows, found, _, _ = made(n=1)
    text = page.write(tmp_path, MANIFEST, found, rows).read_text()
    assert text.count("<figure>") == 1 and "Several replies" not in text
    assert "2 problems, 1 reply each" in text and "an interval needs 2 replies to a problem" in text


def test_the_page_says_in_which_sandbox_programs_ran(tmp_path):
    rows, found, _, _ = made()
    for driver, words in (
        ("bwrap", "Programs ran in the sandbox &#39;bwrap&#39;."),
        ("none", "Programs ran in no sandbox."),
    ):
        text = page.write(tmp_path, MANIFEST | {"scoring": {"sandbox": driver}}, found, rows).read_text()
        assert words in text
    assert "Programs ran" not in page.write(tmp_path, MANIFEST, found, rows).read_text()
