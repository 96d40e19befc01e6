from gspo.config.answer_format import IN_TAGS, default_system
from gspo.config.files import from_dict

EXPECTED = [
    ("rows.jsonl", ["mine:f", "exact"], IN_TAGS),
    ("reasoning_gym:gcd", ["task"], IN_TAGS),
    ("rows.jsonl", ["task"], ""),  # dropped beside a function from Python
    ("rows.jsonl", ["math"], ""),  # finds the answer anywhere
    ("rows.jsonl", ["mine:f"], ""),
    ("verifiers:v", ["task"], ""),
]


def test_rewards_that_read_tags_have_the_prompt_say_so():
    for source, functions, expected in EXPECTED:
        config = from_dict({"task": {"source": source}, "reward": {"functions": functions}})
        assert default_system(config) == expected, (source, functions)
