"""What a run takes from a probe."""

import json

import pytest

from gspo.probe.source import DEPENDS, FILE, recommended

SETTINGS = {
    "model": {"path": "m"}, "task": {"source": "t"}, "optimizer": {"lr": 1e-6},
    "algorithm": {"name": "gspo", "epsilon": 3e-4, "epsilon_high": 4e-4, "epochs": 2, "constants": {}},
}  # fmt: skip
ADVICE = {"name": "sapo", "old_logprobs": "sampler", "router_replay": "none"}


def write(folder, settings=SETTINGS, **changes):
    depends = {key: settings.get(key.split(".")[0], {}).get(key.split(".")[1]) for key in DEPENDS}
    (folder / FILE).write_text(json.dumps({"recommended": ADVICE, "reasons": ["why"], "depends": depends} | changes))
    return folder


def test_the_algorithm_is_taken_whole_and_the_rest_stays(tmp_path):
    made = recommended(write(tmp_path), SETTINGS, ())
    assert made["algorithm"] == ADVICE | {"epochs": 2}  # no clip range of another algorithm is left
    assert {name: table for name, table in made.items() if name != "algorithm"} == {
        name: table for name, table in SETTINGS.items() if name != "algorithm"
    }


def test_what_is_typed_stays(tmp_path):
    made = recommended(write(tmp_path), SETTINGS, ["algorithm.epsilon", "algorithm.epsilon_high", "algorithm.name"])
    assert made["algorithm"]["name"] == "gspo" and made["algorithm"]["epsilon"] == 3e-4


def test_another_run_is_refused_with_what_differs(tmp_path):
    other = SETTINGS | {"optimizer": {"lr": 1e-5}}
    with pytest.raises(ValueError, match=r"optimizer.lr was 1e-06 there and is 1e-05 here.*probe again"):
        recommended(write(tmp_path), other, ())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "there is no probe.json"),
        ("{", "cannot be read"),
        ("[]", "not what `gspo probe` writes"),
        ('{"depends": 3}', "not what `gspo probe` writes"),
    ],
)
def test_what_is_no_probe_is_refused(tmp_path, text, words):
    if text is not None:
        (tmp_path / FILE).write_text(text)
    with pytest.raises(ValueError, match=words):
        recommended(tmp_path, SETTINGS, ())


def test_a_probe_that_could_not_tell_is_refused_with_its_reasons(tmp_path):
    with pytest.raises(ValueError, match=r"it recommends nothing\. too few groups"):
        recommended(write(tmp_path, recommended=None, reasons=["too few groups"]), SETTINGS, ())
