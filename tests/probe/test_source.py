"""What a run takes from a probe."""

import datetime
import json

import pytest

from gspo.probe.source import FILE, depends_on, own_of, recommended

SETTINGS = {
    "model": {"path": "m", "device": "cpu"}, "task": {"source": "t", "config": {"low": 1}, "seed": 0},
    "optimizer": {"lr": 1e-6, "warmup": 3}, "log": {"dir": "a"}, "reward": {"functions": ["x"], "workers": 1},
    "algorithm": {"name": "gspo", "epsilon": 3e-4, "epsilon_high": 4e-4, "epochs": 2, "constants": {}},
}  # fmt: skip
ADVICE = {"name": "sapo", "old_logprobs": "sampler", "router_replay": "none"}


def write(folder, settings=SETTINGS, **changes):
    told = {"recommended": ADVICE, "reasons": ["why"], "depends": depends_on(settings), "own": own_of(settings)} | changes
    (folder / FILE).write_text(json.dumps(told))
    return folder


def changed(section, **values):
    return SETTINGS | {section: SETTINGS[section] | values}


def test_the_algorithm_is_taken_whole_and_the_rest_stays(tmp_path):
    made = recommended(write(tmp_path), SETTINGS, ())
    assert made["algorithm"] == ADVICE | {"epochs": 2}  # no clip range of another algorithm is left
    assert {name: table for name, table in made.items() if name != "algorithm"} == {
        name: table for name, table in SETTINGS.items() if name != "algorithm"
    }


def test_where_own_settings_are_kept_nothing_changes(tmp_path):
    assert recommended(write(tmp_path, recommended={}), SETTINGS, ()) == SETTINGS


@pytest.mark.parametrize("other", [{"name": "cispo"}, {"epsilon": 0.03}, {"router_replay": "R3"}])
def test_own_settings_that_are_kept_are_those_that_were_probed(tmp_path, other):
    ((key, value),) = other.items()
    here = changed("algorithm", **other)
    with pytest.raises(ValueError, match=rf"algorithm\.{key} was .* there and is {value!r} here"):
        recommended(write(tmp_path, recommended={}), here, ())
    if key != "name":
        assert recommended(tmp_path, here, [f"algorithm.{key}"]) == here


@pytest.mark.parametrize("typed", [["epsilon"], ["epsilon_high"], ["epsilon", "epsilon_high"]])
def test_a_clip_range_is_taken_whole_from_the_probe_or_from_what_is_typed(tmp_path, typed):
    told = ADVICE | {"name": "gspo", "epsilon": 0.03, "epsilon_high": 0.04}
    here = changed("algorithm", **dict.fromkeys(typed, 0.001))
    made = recommended(write(tmp_path, recommended=told), here, [f"algorithm.{end}" for end in typed])["algorithm"]
    assert {end: made[end] for end in ("epsilon", "epsilon_high") if end in made} == dict.fromkeys(typed, 0.001)


def test_a_date_in_the_settings_of_a_task_is_compared_as_text(tmp_path):
    dated = changed("task", config={"since": datetime.date(2024, 1, 1)})
    recommended(write(tmp_path, dated), dated, ())
    with pytest.raises(ValueError, match=r"task\.config was .*2024-01-01.* there and is .*2024-01-02"):
        recommended(tmp_path, changed("task", config={"since": datetime.date(2024, 1, 2)}), ())


def test_of_a_device_only_the_type_counts(tmp_path):
    write(tmp_path, changed("model", device="cuda:1"))
    recommended(tmp_path, changed("model", device="cuda"), ())
    with pytest.raises(ValueError, match=r"model\.device was 'cuda' there and is 'cpu' here"):
        recommended(tmp_path, SETTINGS, ())


def test_what_is_typed_stays(tmp_path):
    typed = changed("algorithm", old_logprobs="recompute")
    made = recommended(write(tmp_path), typed, ["algorithm.old_logprobs"])
    assert made["algorithm"]["old_logprobs"] == "recompute" and made["algorithm"]["name"] == "sapo"
    with pytest.raises(ValueError, match=r"--algorithm\.name: --from-probe .* leave one of the two out"):
        recommended(write(tmp_path), SETTINGS, ["algorithm.name"])


@pytest.mark.parametrize(
    "other",
    [
        changed("optimizer", lr=1e-5),
        changed("task", config={"low": 2}),
        changed("reward", functions=["y"]),
        changed("algorithm", epochs=3),
        changed("model", revision="v2"),
    ],
)
def test_another_run_is_refused_with_what_differs(tmp_path, other):
    with pytest.raises(ValueError, match=r"was .* there and is .* here, and the advice depends on it: probe again"):
        recommended(write(tmp_path), other, ())


@pytest.mark.parametrize(
    "other",
    [
        changed("log", dir="b"),
        changed("optimizer", warmup=9),
        changed("reward", workers=8),
        changed("task", seed=4),
        changed("algorithm", epsilon=0.1, epsilon_high=0.2),
    ],
)
def test_what_the_advice_does_not_depend_on_may_differ(tmp_path, other):
    recommended(write(tmp_path), other, ())


def test_logins_are_neither_written_nor_told_nor_in_the_way(tmp_path):
    secret = changed("model", path="https://user:hunter2@host/m")
    write(tmp_path, secret)
    assert "hunter2" not in (tmp_path / FILE).read_text()
    recommended(tmp_path, secret, ())
    with pytest.raises(ValueError) as told:
        recommended(tmp_path, SETTINGS | {"model": {"path": "https://user:hunter2@other/m", "device": "cpu"}}, ())
    assert "hunter2" not in str(told.value) and "other/m" in str(told.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "there is no probe.json"),
        ("{", "cannot be read"),
        ("[]", "not what `gspo probe` writes"),
        ('{"depends": 3}', "not what `gspo probe` writes"),
        ('{"depends": {}, "recommended": 3}', "not what `gspo probe` writes"),
        ('{"depends": {}, "recommended": ["gspo"]}', "not what `gspo probe` writes"),
        ('{"depends": {}, "recommended": {}, "own": []}', "not what `gspo probe` writes"),
    ],
)
def test_what_is_no_probe_is_refused(tmp_path, text, words):
    if text is not None:
        (tmp_path / FILE).write_text(text)
    else:
        (tmp_path / FILE).unlink(missing_ok=True)
    with pytest.raises(ValueError, match=words):
        recommended(tmp_path, SETTINGS, ())


def test_a_probe_that_could_not_tell_is_refused_with_its_reasons(tmp_path):
    with pytest.raises(ValueError, match=r"it recommends nothing\. too few groups"):
        recommended(write(tmp_path, recommended=None, reasons=["too few groups"]), SETTINGS, ())
