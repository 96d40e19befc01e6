from gspo.report import samples
from gspo.report.samples import Token
from gspo.runs.log import to_json
from tests.report.rows import rollouts, row


def test_before_and_after_show_the_same_prompt_and_a_median_completion():
    first = [row(1, "a b c", r, f"f{r}") for r in (0.0, 1.0, 0.0)] + [row(1, "x y", 1.0, "other")]
    last = [row(9, "q r", 0.0, "no"), row(9, "a b c", 1.0, "l1"), row(9, "a b c", None, "failed")]
    before, after = samples.choose_pair(first, last)
    assert (before["completion"], after["completion"]) == ("f0.0", "l1")
    assert samples.choose_pair(first, first) is None
    assert samples.choose_pair([], last) is None


def test_before_and_after_are_typical_of_their_time():
    """Most fail before and most succeed after: a prompt that fails twice, or a lucky first completion, is not shown."""
    rewards = {"a": (1, 1), "b": (0, 0), "c": (0, 1), "d": (0, 1), "e": (0, 1)}
    first = [row(0, f"q {p}", float(r), f"before {p}") for p, (r, _) in rewards.items()]
    last = [row(9, f"q {p}", float(r), f"after {p}") for p, (_, r) in rewards.items()]
    before, after = samples.choose_pair(first, last)
    assert (before["reward"], after["reward"]) == (0.0, 1.0)
    assert before["prompt"] == after["prompt"]


def test_tokens_are_coloured_by_their_log_ratio(tmp_path):
    assert [samples.shade(v, 1.0) for v in (-9.0, -0.5, 0.0, 0.1, 0.3, 1.0, None)] == ["d4", "d2", "", "", "u1", "u4", ""]
    rollouts(tmp_path, [row(1, "p", 1.0, tokens=["a", "b\n", "c"], log_ratio=[1e-3, -1e-3, 0.0], logp=[-0.5, -1.0, -2.0])])
    assert parts(tmp_path)[1].tokens == [
        Token("u4", "log-ratio +0.001, log-prob -0.5", "a"), Token("d4", "log-ratio -0.001, log-prob -1", "b↵\n"),
        Token("", "log-ratio +0, log-prob -2", "c"),
    ]  # fmt: skip


def parts(folder):
    """Those of the first coloured completion."""
    return samples.coloured(folder / "rollouts.jsonl")["cards"][0][1]["parts"]


def test_a_long_completion_loses_its_middle(tmp_path):
    n = samples.MOST_TOKENS + 7
    rollouts(tmp_path, [row(1, "p", 1.0, tokens=["t"] * n, log_ratio=[0.1] * n, logp=[-1.0] * n)])
    tokens = parts(tmp_path)[1].tokens
    assert len(tokens) == samples.MOST_TOKENS + 1 and [token.gap for token in tokens if not token.text] == [7]


def test_conversations_are_shown_turn_by_turn(tmp_path):
    said = [
        {"role": "user", "content": "which <box>?"},
        {"role": "assistant", "content": "look a", "turn": 0, "reward": -0.02},
        {"role": "tool", "content": "nothing"},
        {"role": "assistant", "content": "made up", "left_out": "no answer of the policy"},
    ]
    messages = [{"role": "system", "content": "Be brief."}, said[0]]
    assert samples.prompt_text({"prompt": messages}) == "system: Be brief.\nuser: which <box>?"
    tokens = {"tokens": ["look ", "a"], "log_ratio": [0.1, -0.1], "token_turns": [0, 0]}
    rollouts(tmp_path, [row(step, "which <box>?", 1.0, "look a", dialogue=said, **tokens) for step in (1, 2)])
    for _, card in samples.before_and_after(tmp_path)["cards"]:
        assert [part[:3] for part in card["parts"]] == [
            ("prompt", "user", "which <box>?"), ("completion", "turn 1, reward −0.02", "look a"),
            ("prompt", "tool", "nothing"), ("prompt", "assistant, left out: no answer of the policy", "made up"),
        ]  # fmt: skip
    assert parts(tmp_path)[1].note == "turn 1, trained, reward −0.02"
    assert [token.text for token in parts(tmp_path)[1].tokens] == ["look ", "a"] and not parts(tmp_path)[2].tokens


def test_the_list_has_the_wrong_ones_first_and_says_why(tmp_path):
    made = [
        row(8, "old", 1.0),
        row(9, "shaped", 1.2, reward_parts={"right": 0.0, "short": 1.2}, answer="4"),
        row(9, "right", 0.5, reward_parts={"right": 1.0, "short": -0.5}),
        row(9, "cut", 0.0, stop="length"),
        row(9, "most", 0.8, answer="4", reward_parts={"right": 0.8}),
        row(9, "part", 1.3, reward_parts={"right": 0.8, "short": 0.5}),
        row(9, "failed", None, error="no server"),
        row(9, "none", 1.0, reward_parts={"right": None, "short": 1.0}),
    ]
    assert samples._cause(row(9, "x", 1.0, reward_parts={"format": 0.0, "exact": 1.0}, answer="4"), 1.0) == "format below 1"
    rollouts(tmp_path, made)
    found = samples.listed(tmp_path, 1.0)
    assert [line["prompt"] for line in found["rows"]] == ["none", "failed", "part", "most", "cut", "shaped", "right", "old"]
    assert [line["notes"] for line in found["rows"][:7]] == [
        "training; not scored by right", "training; no reward; no server", "training; right below 1; right 0.8; short 0.5",
        "training; reward below 1", "training; cut off", "training; not the right answer; right 0; short 1.2",
        "training; right 1; short -0.5",
    ]  # fmt: skip
    text, _, causes = found["why"].partition(": ")
    assert text == "Of the 7 training completions of step 9 that were logged, 6 are wrong"
    assert sorted(causes.strip(".").split(", ")) == [
        "1 cut off", "1 no reward", "1 not scored by right", "1 not the right answer", "1 reward below 1", "1 right below 1",
    ]  # fmt: skip
    assert [line["right"] for line in samples.listed(tmp_path, 0.0)["rows"]] == [False, False, *[True] * 6]
    (tmp_path / "evaluations.jsonl").write_bytes(to_json(row(9, "held", 1.0)))
    found = samples.listed(tmp_path, 1.0)
    assert found["why"] == "Of the 1 held-out completions of step 9 that were logged, 0 are wrong."
    assert samples.listed(tmp_path / "missing", 1.0) == {"rows": [], "why": ""}


def test_what_agents_measured_beside_their_reward_makes_nothing_right(tmp_path):
    rollouts(tmp_path, [row(9, "a", reward, reward_parts={"duration": 3.0}) for reward in (0.0, 1.0)])
    found = samples.listed(tmp_path, 1.0, served=True)
    assert [(line["reward"], line["right"]) for line in found["rows"]] == [(0.0, False), (1.0, True)]
    assert "1 are wrong" in found["why"]


def test_completions_that_went_wrong_are_coloured_first(tmp_path):
    rewards = (("r", 1.0), ("w", 0.0), ("f", None))  # the last one failed: it has no advantage either
    rollouts(tmp_path, [row(1, p, r, tokens=["a"], log_ratio=[0.1], advantage=r) for p, r in rewards])
    cards = samples.coloured(tmp_path / "rollouts.jsonl")["cards"]
    assert cards[0][1]["about"] == "2 tokens"
    rollouts(tmp_path, [row(1, "p", 1.0, tokens=["a"], log_ratio=[0.1], advantage=[0.5, -0.5])])  # one of each turn
    assert samples.coloured(tmp_path / "rollouts.jsonl")["cards"][0][1]["about"] == "2 tokens, reward 1.00"
    assert [card["parts"][0].text for _, card in cards] == ["f", "w", "r"]


def test_coloured_completions_are_those_that_teach_most(tmp_path):
    advantages = [0.0, -0.35, 2.4, 0.0, -0.4, -0.3, 0.0, 1.2, -0.2, 0.5, 0.0]
    rollouts(tmp_path, [row(1, f"{a:g}", 0.0, tokens=["a"], log_ratio=[0.1], advantage=a) for a in advantages])
    cards = samples.coloured(tmp_path / "rollouts.jsonl")["cards"]
    assert [card["parts"][0].text for _, card in cards] == ["-0.4", "-0.35", "-0.3", "0.5", "1.2", "2.4"]
