"""The configuration: reading, overriding, writing, and its documentation."""

import dataclasses
import re
import tomllib
import typing

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from gspo.config.files import as_config, docs, from_dict, load, read_toml, to_dict, to_toml
from gspo.config.policy import OptimizerConfig
from gspo.config.rewards import RewardConfig
from gspo.config.rollout import RolloutConfig
from gspo.config.schema import SECTIONS, Config
from gspo.config.training import TrainConfig


def test_the_command_line_wins_over_the_file_and_the_file_over_the_defaults(tmp_path):
    assert load() == from_dict({}) == Config()
    path = tmp_path / "run.toml"
    path.write_text('[train]\nsteps = 7\nseed = 3\n[rollout]\nstop = ["a"]\n')
    config = load(path, {"train.steps": "9", "model.path": "here"})
    assert config.train == TrainConfig(steps=9, seed=3)
    assert config.rollout == RolloutConfig(stop=["a"])
    assert config.model.path == "here"
    assert config.optimizer == OptimizerConfig()
    assert load(path, {"train.steps": 9}) == load(path, {"train.steps": "9"})


TYPED = [
    ("optimizer.lr", "1E-5", 1e-5),
    ("optimizer.lr", ".5", 0.5),
    ("train.steps", "12", 12),
    ("log.rollouts", "false", False),
    ("log.dir", "runs/7", "runs/7"),
    ("log.dir", "true", "true"),
    ("model.revision", "none", None),
    ("algorithm.scale_rewards", "none", "none"),
    ("task.size", "none", None),
    ("algorithm.epsilon", "null", None),
    ("reward.functions", "exact, my_rewards:short", ["exact", "my_rewards:short"]),
    ("reward.functions", '["exact", "math"]', ["exact", "math"]),
    ("reward.weights", "1,.5", [1.0, 0.5]),
    ("reward.weights", "[1, 0.5]", [1.0, 0.5]),
    ("log.trackers", "", []),
    ("rollout.stop", '["\\n", "a,b"]', ["\n", "a,b"]),
    ("task.config", '{min_n = 3, name = "x"}', {"min_n": 3, "name": "x"}),
    ("task.prompt_column", "", ""),
]


def test_words_of_a_command_line_become_the_fields_type(subtests):
    for key, text, value in TYPED:
        with subtests.test(key=key, text=text):
            more = {"algorithm.epsilon_high": "none"} if key == "algorithm.epsilon" else {}
            section, name = key.split(".")
            actual = getattr(getattr(load(None, {key: text} | more), section), name)
            assert actual == value and type(actual) is type(value)


def test_what_follows_a_value_is_not_dropped(subtests):
    more = ["\nsteps = 5", "\r\nx = 5", "\n[rollout]\nnum_prompts = 3", " # five", "\n# five", "#", "\nvalue2 = 1"]
    values = {"train.steps": "1", "optimizer.lr": "1e-5", "log.rollouts": "true", "task.config": "{a = 1}", "task.size": "2"}
    for key, value in values.items():
        for text in [*more, *("\n" + text for text in values.values())]:
            with subtests.test(key=key, text=text), pytest.raises(ValueError, match=rf"{key} = .*{re.escape(value[:1])}"):
                load(None, {key: value + text})
    whole = {"task.config": '{a = "x # y"}', "reward.weights": "[1, # one\n 2]", "train.steps": " 1\n"}
    made = load(None, whole | {"task.system": "a\n# b"})
    assert (made.task.config, made.reward.weights, made.train.steps) == ({"a": "x # y"}, [1, 2], 1)
    assert made.task.system == "a\n# b"


def test_what_no_list_and_no_file_could_hold_is_refused(subtests):
    for key, text, message in (
        ("rollout.stop", ",", "must be a list of strings"),
        ("reward.weights", "1,,2", "must be a list of numbers"),
        ("task.system", "a\udcff", "is not UTF-8 text"), ("rollout.stop", "a,\udcff", "is not UTF-8 text"),
    ):  # fmt: skip
        with subtests.test(key=key, text=text), pytest.raises(ValueError, match=message):
            load(None, {key: text})
    assert load(None, {"reward.weights": "1,2,"}).reward.weights == [1, 2]


def strategy(field, hint):
    """Values that a field accepts."""
    limits, kinds = field.metadata, typing.get_args(hint) or (hint,)
    if field.name == "url":
        return st.sampled_from(["http://127.0.0.1:8000", "https://x/v1"])
    if field.name == "engine":
        return st.sampled_from(["embedded", "vllm", "mine:engine"])
    if typing.get_origin(hint) is list:
        known = {"urls": ["http://127.0.0.1:8000"], "functions": ["exact", "math", "a:b"], "trackers": ["wandb"]}
        text = st.sampled_from(known.get(field.name, ["a", "\n", '"']))
        return st.lists(text if typing.get_args(hint)[0] is str else st.floats(0.5, 2), min_size=1, max_size=3)
    if typing.get_origin(hint) is dict:
        text = st.text().filter(lambda text: "\0" not in text)
        plain = st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False) | text
        return st.dictionaries(
            text,
            st.recursive(plain, lambda s: st.lists(s, max_size=2) | st.dictionaries(text, s, max_size=2), max_leaves=4),
            max_size=3,
        )
    if limits["choices"]:
        values = st.sampled_from(tuple(limits["choices"]))
    elif float in kinds:
        values = st.floats(limits["low"], limits["high"])
    elif int in kinds:
        values = st.integers(limits["low"], limits["high"])
    elif bool in kinds:
        values = st.booleans()
    elif field.name == "date":
        values = st.dates().map(str)
    else:
        values = st.text(min_size=1, max_size=60).filter(
            lambda text: text.strip() and text[0] != "~" and not {":", "\0"} & set(text)
        )
    return values | st.none() if type(None) in kinds else values


def sections():
    made = {}
    for name, cls in SECTIONS.items():
        fields = {f.name: strategy(f, typing.get_type_hints(cls)[f.name]) for f in dataclasses.fields(cls)}
        made[name] = st.fixed_dictionaries({}, optional=fields)
    return st.fixed_dictionaries({}, optional=made)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(sections(), st.booleans())
def test_what_is_written_reads_back_the_same(tables, comments):
    evaluation = tables.get("eval", {})
    assume(not 0 < (evaluation.get("temperature") or 1) < 0.01)
    assume(evaluation.get("num_prompts", 1) or not evaluation.get("every"))
    assume(tables.get("task", {}).get("system") not in ("none", "null"))
    if tables.get("rollout", {}).get("overlong_buffer"):
        tables["rollout"]["overlong_buffer"] = 1
    refresh = tables.get("refresh", {})
    above, below = refresh.get("drop_above", 1), refresh.get("drop_below", 0)
    assume(below < above and (not refresh.get("every") or above < 1 or below > 0 or refresh.get("source") is not None))
    config = from_dict(tables)
    text = to_toml(config, comments, secrets=True)
    assert from_dict(tomllib.loads(text)) == config
    assert from_dict(to_dict(config)) == config
    assert to_toml(from_dict(tomllib.loads(text)), comments, secrets=True) == text


def test_stages_are_written_and_read_back_in_order():
    tables = {"stage": [{"at": 5, "temperature": 0.5}, {"at": 9, "source": "more.jsonl", "num_generations": 4}]}
    config = from_dict(tables)
    assert [stage.at for stage in config.stage] == [5, 9] and to_dict(config)["stage"] == tables["stage"]
    for comments in (False, True):
        assert from_dict(tomllib.loads(to_toml(config, comments))) == config
    assert "stage" not in to_dict(Config()) and "[[stage]]" not in to_toml(Config())


def test_a_written_configuration_says_what_each_field_means():
    text = to_toml(Config(), comments=True)
    for name, cls in SECTIONS.items():
        assert f"[{name}]" in text
        assert f"# {cls.__doc__}" in text and "  " not in text
        for field in dataclasses.fields(cls):
            assert f"{field.name} = " in text or f"# {field.name} is not set" in text
            assert docs(cls)[field.name].split()[0] in text


def test_one_configuration_does_not_share_lists_with_another():
    Config().task.config["x"] = 1
    tables = {"task": {"config": {"n": 1}}, "reward": {"functions": ["exact"]}}
    config = from_dict(tables)
    config.task.config["n"] = 2
    config.reward.functions.append("math")
    assert Config().task.config == {}
    assert Config().reward == RewardConfig()
    assert tables == {"task": {"config": {"n": 1}}, "reward": {"functions": ["exact"]}}


ODD_FILES = [
    ("not valid TOML: .*line 2", b"[train]\nsteps = 7\0"),
    (r"train.train.steps = 1: unknown key, did you mean train.steps\?", b'[train]\n"train.steps" = 1\n'),
    (r"\[actor_rollout_ref\]: .* did you mean optimizer.lr", b"[actor_rollout_ref]\nlr = 1e-6"),
    (r"\[data\]: unknown section.*train_batch_size is rollout.num_prompts", b"[data]\ntrain_batch_size = 8"),
    (r"\[trainer\]: unknown section.*call test_freq is eval.every here", b"[trainer]\ntest_freq = 5"),
    (r"\[custom_reward_function\]: unknown section.* is reward.functions here", b"[custom_reward_function]\npath = 'a.py'"),
    (r"\[modle\]: unknown section.* did you mean model\?", b"[modle]\npath = 'a'"),
    (r"\[actor_rollout_ref\]: .*clip_ratio_low is algorithm.epsilon", b"[actor_rollout_ref.actor]\nclip_ratio_low = 0.1"),
]


def test_odd_files(tmp_path, subtests):
    path = tmp_path / "run.toml"
    path.write_bytes(b"\xef\xbb\xbf[train]\nsteps = 7\n")  # a byte order mark, as some editors write
    assert load(path).train.steps == 7
    for message, text in ODD_FILES:
        with subtests.test(message=message):
            path.write_bytes(text)
            with pytest.raises(ValueError, match=message) as refused:
                load(path)
            assert len(str(refused.value)) < 1000


def test_a_file_that_cannot_be_read(tmp_path, refuses):
    table = [
        ("no such study file", tmp_path / "none.toml"),
        ("cannot be read", "a\0b"),
        ("is a folder, and no study file: .* as model.path", tmp_path),
    ]
    refuses(lambda path: read_toml(path, "study file"), table)


ODD_TABLES = [
    ("optimizer.lr = 1e-05: is in no section: put each key below the name of its section", {"optimizer.lr": 1e-5}),
    (r"\[stages\]: unknown section.*, did you mean stage\?", {"stages": [{"at": 5}]}),
    ("learning_rate = 1e-05: is in no section: .* learning_rate is optimizer.lr here", {"learning_rate": 1e-5}),
    (r"judge\.api_key = '<hidden>': unknown key", {"judge": {"api_key": "sk-1234"}}),
    (r"judge\.request = \[\{'token': '<hidden>'\}\]: must be a table", {"judge": {"request": [{"token": "sk-1234"}]}}),
]


def test_odd_tables(refuses):
    refuses(lambda tables: as_config(None, tables), ODD_TABLES)


PATHS = [f"{name}.{f.name}" for name, cls in SECTIONS.items() for f in dataclasses.fields(cls) if f.metadata["path"]]


def test_every_field_that_names_a_file_or_folder_is_a_path():
    """By the words of its docstring; a new one that is forgotten fails here."""
    words = re.compile(r"\b(folder|file|interpreter)\b", re.I)
    named = {
        f"{name}.{field.name}"
        for name, cls in SECTIONS.items()
        for field in dataclasses.fields(cls)
        if "str" in field.type and "list" not in field.type and words.search(docs(cls)[field.name])
        if not field.metadata["choices"]
    }
    assert set(PATHS) == named | {"task.eval_source"}  # "source of the held-out prompts"


def test_a_path_is_found_from_home(tmp_path, monkeypatch, subtests):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "run.toml").write_text("[train]\nsteps = 3\n")
    assert load("~/run.toml").train.steps == 3
    for key in PATHS:
        section, _, name = key.partition(".")

        def read(value, section=section, name=name):
            return getattr(getattr(from_dict({section: {name: value}}), section), name)

        with subtests.test(key=key):
            assert read("~/a/b") == str(tmp_path / "a/b") and read("~") == str(tmp_path)
            for other in ("a/~", "org/model", "./~x", "reasoning_gym:chain_sum"):
                assert read(other) == other
            whole = from_dict({section: {name: "~/a"}})
            assert from_dict(to_dict(whole)) == from_dict({section: {name: str(tmp_path / "a")}})
            with pytest.raises(ValueError, match=rf"{re.escape(key)} = '~nobody-at-all/x': there is no user of that name"):
                read("~nobody-at-all/x")


def test_secrets_are_written_where_they_are_asked_for_alone():
    config = from_dict({"judge": {"request": {"api_key": "sk-1234", "seed": 3}}})
    assert from_dict(tomllib.loads(to_toml(config, secrets=True))) == config
    assert 'request = {api_key = "<hidden>", seed = 3}' in to_toml(config)
