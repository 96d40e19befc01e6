"""The study of the mechanism: its task, its jitter, a whole cell, its fits. `lab/studies/report.py --check` compares its
tables with the page.
"""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import foretold
import jitter
import laws
import mechanism
import mechanism_pictures
import numpy as np
import probe_cell
import pytest
import report
import torch
import world
from cells import Workers

from gspo.backends.hf.routing import Replay, record
from gspo.statistics.intervals import Interval
from tests.backends.hf.families import tiny

ROOT = Path(__file__).parents[2]

SIZES = {"groups": 8, "fresh": 8, "warm": 1, "update": 2, "generations": 4, "steps": 3}


def test_texts_follow_the_source_and_are_worth_their_symbols():
    follows, value = world.source()
    made = world.texts(400, 50, np.random.default_rng(0))
    topic, a, b = (made[:, :1].repeat(48, 1), made[:, 1:-1], made[:, 2:])
    nats = -np.log(follows[topic, a, b])
    entropy = -(follows * np.log(follows + 1e-300)).sum(-1)[topic, a]
    assert nats.mean() == pytest.approx(entropy.mean(), abs=0.03) and 0.8 < nats.mean() < 1.4
    assert world.worth(["Aab"] * 3, ["a", "ab", "A"]) == [value[0], (value[0] + value[1]) / 2, -1.0]
    assert value.sum() == 0 and world.worth(["Aab"], [""]) == [-1.0]


def chosen(model, tokens):
    with torch.no_grad(), record(model.model) as recording:
        hidden = model.hidden(input_ids=tokens)
        return hidden, recording.take()


def test_jitter_changes_the_choice_and_a_replay_of_it_all():
    """Disturbed, the routers take other experts; whoever replays these, undisturbed, computes the same numbers."""
    tokens = torch.randint(2, 20, (3, 12), generator=torch.Generator().manual_seed(0))
    plain, none, some, much = (tiny("qwen3_moe") for _ in range(4))
    for model, share in ((none, 0.0), (some, 0.1), (much, 1.0)):
        jitter.disturb(model.model, share, 0)
    (h, own), (h0, same), (_, few), (h1, many) = (chosen(model, tokens) for model in (plain, none, some, much))
    assert torch.equal(own, same) and torch.allclose(h, h0)
    assert (few != own).any() and (many != own).sum() > (few != own).sum() and not torch.allclose(h, h1, atol=1e-3)
    with torch.no_grad(), Replay(plain.model, many):
        assert torch.allclose(plain.hidden(input_ids=tokens), h1, atol=1e-5)


def test_a_cell_with_jitter(tmp_path, monkeypatch):
    """Routing alone differs at age 0: R3 takes the experts of the sampler and sees no difference, R2 takes the trainer's."""
    monkeypatch.setattr(probe_cell, "PROMPTS", 256)  # a whole study's take seconds to read
    point = mechanism.Point(experts=8, jitter=0.3, layers=2, length=16, rate=1e-3, mini_batches=2, ages=(0, 1))
    jittered = probe_cell.run_cell(point, 0, SIZES, tmp_path)
    first, last = jittered["ages"]
    assert first["ratios"]["sampler"]["sd_token"] > 100 * first["ratios"]["R3"]["sd_token"]
    assert first["ratios"]["recompute"]["sd_token"] == 0 < last["ratios"]["recompute"]["sd_token"]
    assert last["agreement"] < 0.98 and first["agreement"] < 0.98
    assert jittered["of"] == jittered["groups"] == 8 and jittered["seconds"] > 0
    for name in ("grpo 0.2", "gspo auto", "cispo", "reinforce", "reinforce_is", "sapo", "dppo_tv", "grpo_dual 0.2"):
        assert set(last["merits"][name]) == {"direction", "noise", "update", "largest", "told"}
    for part in ("direction", "noise", "update"):  # gspo_token is gspo where a completion has one advantage
        token, gspo = (np.array(last["merits"][name][part], float) for name in ("yours", "gspo 0.03"))
        np.testing.assert_allclose(token, gspo, rtol=1e-3, atol=1e-4)
    json.dumps(jittered, allow_nan=False)


def line(b, seeds=4, noise=0.02, bend=None):
    x, rng = [16.0, 32.0, 64.0, 128.0, 256.0], np.random.default_rng(0)
    y = [v**b if bend is None or v <= bend else bend**b for v in x]
    values = [{seed: v * float(np.exp(noise * rng.normal())) for seed in range(seeds)} for v in y]
    return laws.fit([(f"{v:g}", v) for v in x], values, range(seeds))


def test_fits_find_the_exponent_and_where_it_stops():
    law = line(-0.5)
    assert law.b.mean == pytest.approx(-0.5, abs=0.03) and law.b.low < law.b.mean < law.b.high
    assert (law.last, law.stops, law.holds) == ("256", False, True)
    bent = line(-1.0, bend=64.0)
    assert bent.stops and bent.last in ("64", "128") and bent.b.mean < -0.7
    flat = line(0.0)
    assert not flat.holds and not flat.stops
    assert line(-0.5, seeds=2) is None
    three, whole = [("1", 1.0), ("2", 2.0), ("3", 3.0)], dict.fromkeys(range(4), 1.0)
    assert laws.fit(three, [whole] * 3, range(4)) is not None
    for lacking in (whole | {3: -1.0}, dict.fromkeys(range(3), 1.0)):  # no seed is left out for what it found
        assert laws.fit(three, [whole, lacking, whole], range(4)) is None
    assert laws.fit(three, [whole, dict.fromkeys(range(3), 1.0), whole], range(3)) is not None  # seed 3 did not run


def test_a_verdict_is_by_where_the_whole_interval_lies():
    for low, high, verdict in (
        (0.1, 0.4, "holds"), (0.0, 0.5, "holds"), (-0.1, 0.4, "open"), (0.4, 0.6, "open"), (0.6, 0.7, "fails"),
        (-0.2, -0.1, "fails"),
    ):  # fmt: skip
        assert foretold.lies(Interval((low + high) / 2, low, high, 4), 0.0, 0.5) == verdict


def test_so_many_intervals_lie_above_0_by_chance():
    """By the binomial law of 48 draws at 2.5 %: 3 or more in 11.8 %, 4 or more in 3.2 %."""
    assert [foretold.too_many(n) for n in (1, 2, 48)] == [1, 1, 4]


def test_every_picture_is_drawn_and_stands_on_the_page(tmp_path):
    mechanism_pictures.draw(mechanism.STUDY.kept(), tmp_path)
    drawn = sorted(path.name for path in tmp_path.iterdir())
    page = (ROOT / "docs" / "mechanism.md").read_text()
    named = re.findall(r'images/(mechanism-\S+\.png)"', page)
    assert drawn == sorted(named) and len(drawn) == 2 * len(mechanism_pictures.PICTURES)
    assert all((report.IMAGES / name).is_file() for name in drawn)


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(mechanism.STUDY, "results", tmp_path / "mechanism")
    monkeypatch.setattr(mechanism.STUDY, "work", tmp_path)
    return tmp_path / "mechanism"


def test_cells_are_kept_and_known_again_by_their_settings(results):
    ours = mechanism.cells(["length"])[:2]
    assert len({cell.name for cell in mechanism.cells(mechanism.DIALS)}) == len(mechanism.cells(mechanism.DIALS))
    assert not any(map(mechanism.STUDY.done, ours)) and mechanism.STUDY.kept() == []
    in_order = dict(sorted(ours[0].settings.items()))  # as another version may have written them
    for one, settings in zip(ours, (in_order, ours[1].settings | {"fresh": 1})):
        mechanism.STUDY.file_of(one).parent.mkdir(parents=True, exist_ok=True)
        mechanism.STUDY.file_of(one).write_text(json.dumps({"settings": settings, "ages": []}))
    assert list(map(mechanism.STUDY.done, ours)) == [True, False]
    mechanism.STUDY.pack()
    assert [each["settings"] for each in mechanism.STUDY.kept()] == [ours[0].settings]
    mechanism.STUDY.file_of(ours[0]).unlink()
    mechanism.STUDY.unpack()  # another machine's cells stay, also beside some of one's own
    assert mechanism.STUDY.done(ours[0])


CELL = """
import sys, time
from pathlib import Path
time.sleep(1.5)
Path(sys.argv[1]).parent.mkdir(parents=True, exist_ok=True)
Path(sys.argv[1]).write_text(sys.argv[2])
"""


class Quick(Workers):
    """Its cells sleep."""

    def _start(self, cell):
        told = json.dumps({"settings": cell.settings, "ages": []})
        command = [sys.executable, "-c", CELL, str(mechanism.STUDY.file_of(cell)), told]
        self.running[cell] = subprocess.Popen(command)
        if len(self.running) == 2:
            self.interrupt()


def test_who_is_asked_to_stop_lets_the_running_cells_end(results):
    workers = Quick(mechanism.STUDY, 2, time.monotonic() + 1e6)
    workers.run(mechanism.cells(["rate"])[:5])
    assert len(mechanism.STUDY.kept()) == 2 and workers.failed == []
