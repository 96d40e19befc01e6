"""Checks of several fields at once: each refuses what it is for, with the remedy, and lets the defaults pass."""

import pytest

from gspo.config.files import from_dict

JUDGE = {"model": "m", "rubric": "r"}


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"reward": {"functions": ["judge"]}}, "judge.model is required"),
        ({"reward": {"functions": ["judge"]}, "judge": JUDGE | {"rubric": " "}}, "judge.rubric is required"),
        (
            {"reward": {"functions": ["judge"]}, "judge": JUDGE | {"request": {"n": 2}}},
            "judge.request.n: is set by the judge",
        ),
        (
            {
                "reward": {"functions": ["judge"]},
                "judge": JUDGE | {"mode": "rank"},
                "eval": {"every": 1, "num_generations": 1},
            },
            "judge.mode = 'rank' and eval.num_generations = 1: the judge compares .* an evaluation needs at least 2",
        ),
        ({"reward": {"functions": ["model"]}}, "reward_model.path is required"),
        ({"reward": {"functions": ["model"]}, "reward_model": {"path": "m", "retries": 9}}, "retries is for a server"),
        (
            {"reward": {"functions": ["model"]}, "reward_model": {"path": "m", "url": "http://u", "label": "kind"}},
            "a server's labels go by their number",
        ),
        ({"reward": {"functions": ["exakt"]}}, r"'exakt' is none of .*, did you mean exact\?"),
        ({"task": {"source": "verifier:x"}}, "verifier is unknown, did you mean verifiers:x"),
        ({"log": {"dir": " "}}, "log.dir = '': name a folder"),
        ({"task": {"system": "none"}}, "task.system = 'none': would be the message itself; for none set it to"),
        ({"eval": {"temperature": 1e-320}}, "eval.temperature = 1e-320: must be 0, or at least 0.01"),
        ({"eval": {"every": 5, "num_prompts": 0}}, "eval.every = 5 and eval.num_prompts = 0: nothing is held out"),
        *(
            (
                {section: {key: url if key == "url" else [url]}},
                rf"{section}\.{key}.* = .*: no address of a server; expected one such as http://",
            )
            for section, key in (("sampler", "urls"), ("judge", "url"), ("reward_model", "url"))
            for url in (
                ":::",
                "",
                "127.0.0.1:8000",
                "http://",
                "ftp://x",
                "http://x:99999",
                "http://x:0",
                "http://a b",
                "//x",
            )
        ),
    ],
)
def test_what_is_refused_as_it_is_read(tables, message):
    with pytest.raises(ValueError, match=message):
        from_dict(tables)
