"""What becomes of a worker and its calls where its machine is lost. tests/launch/test_ray_rewards.py has a real cluster."""

import os
import signal
import warnings

import pytest

from gspo.config.rewards import RewardConfig
from gspo.config.rollout import TaskConfig
from gspo.rewards import channels
from gspo.rewards.scorer import Rewards
from gspo.rewards.worker_location import Here, MachineLost
from gspo.workers.processes import GONE
from tests.data.tools import rollout
from tests.data.wishes import all_end
from tests.rewards.tools import hang, statuses

pytestmark = pytest.mark.filterwarnings("ignore:reward workers. ")
__all__ = ["hang", "statuses"]


class Cluster(Here):
    """A place on machines, of which so many are lost as soon as a worker ends there, but never the last. As in a cluster a
    worker that ends is told by an error of its connection on those that stay.
    """

    def __init__(self, machines=2, lost=1):
        super().__init__()
        self.lost = lost
        self.names, self.moves = [f"10.0.0.{i + 1}" for i in range(machines)], []

    @property
    def name(self):
        return self.names[0]

    def spawn(self, request, variables):
        self.process, self.connection = super().spawn(request, variables)
        return self.process, self

    def send(self, data):
        self.connection.send(data)

    def receive(self, seconds, most):
        try:
            return self.connection.receive(seconds, most)
        except GONE:
            if self.lost and self.leave("it burns"):
                self.lost -= 1
                raise MachineLost("it burns") from None
            raise EOFError from None

    def fileno(self):
        return self.connection.fileno()

    def leave(self, why):
        if len(self.names) == 1:
            return False
        self.moves.append(f"lost: {why}")
        self.names.pop(0)
        return True

    def news(self):
        told, self.moves = self.moves, []
        return told


def scored(*completions, **cluster):
    config = RewardConfig(functions=["tests.rewards.graders:dies"])
    with Rewards(config, TaskConfig(), place=lambda: Cluster(**cluster)) as rewards:
        rewards.wait()
        rollouts = rewards.score([rollout(text, i) for i, text in enumerate(completions)])
        return [r.reward for r in rollouts], [r.error for r in rollouts], rewards.counts(), rewards.counts()


@pytest.mark.filterwarnings("ignore:reward dies")
def test_the_call_is_made_again_elsewhere_at_the_same_level():
    with pytest.warns(UserWarning, match="lost: it burns"):
        rewards, errors, counts, later = scored("a", "exit", "b", "exit")
    assert rewards == [1, None, 1, None]
    assert [error is None for error in errors] == [True, False, True, False]
    assert counts == {"scoring/moved": 1} and later == {"scoring/moved": 0}


def test_a_machine_that_is_lost_before_the_worker_is_ready(tmp_path, monkeypatch):
    (tmp_path / "held.py").write_text("""
import time
from pathlib import Path
from tests.rewards.graders import length

while not Path(__file__).with_suffix(".go").exists():
    time.sleep(0.02)
""")
    monkeypatch.syspath_prepend(tmp_path)
    config = RewardConfig(functions=["held:length"], workers=2)
    with Rewards(config, TaskConfig(), place=Cluster) as rewards:
        os.kill(rewards.workers[0].process.pid, signal.SIGKILL)
        (tmp_path / "held.go").touch()  # no worker is ready before
        with pytest.warns(UserWarning, match="lost: it burns"):
            rewards.wait()
        assert [worker.place.name for worker in rewards.workers] == ["10.0.0.2", "10.0.0.1"]
        assert [r.reward for r in rewards.score([rollout("abc", 0), rollout("a", 1)])] == [3, 1]


@pytest.mark.parametrize(
    ("ends", "why"),
    [
        ("os._exit(4)", "it did not start there: its process died (exit status 4)"),
        ("from tests.rewards.graders import hang; hang()", "it did not start there: took longer than 0.5 s"),
        ("raise ImportError('not here')", "not here; all machines of a cluster need"),
    ],
    ids=["dies", "hangs", "lacks a module"],
)
@pytest.mark.parametrize("first", [1, 2], ids=["at the first start", "after a move"])
def test_a_machine_on_which_a_worker_does_not_start_is_left(tmp_path, monkeypatch, hang, ends, why, first):
    """first: the start that fails. The calls before it are lost with their machine, and no completion is to blame."""
    (tmp_path / "starts_badly.py").write_text(f"""
import os
import time
from pathlib import Path

starts = Path(__file__).with_suffix(".starts")
with open(starts, "a") as file:
    file.write(".")
if starts.stat().st_size == {first}:
    {ends}

def score(prompts, completions, **columns):
    if starts.stat().st_size < {first}:
        os._exit(3)
    return [1.0] * len(completions)
""")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(channels, "START", 0.5)  # for what hangs alone
    config = RewardConfig(functions=["starts_badly:score"])
    with Rewards(config, TaskConfig(), place=lambda: Cluster(3, lost=first - 1)) as rewards:
        with pytest.warns(UserWarning) as said:
            found = rewards.score([rollout("a", 0), rollout("b", 1)])
        assert [(one.reward, one.error) for one in found] == [(1, None)] * 2
    texts = [str(warning.message) for warning in said]
    assert len(texts) == first and texts[:-1] == ["lost: it burns"] * (first - 1)
    assert texts[-1].startswith("lost: ") and why in texts[-1]


@pytest.mark.filterwarnings("ignore:reward dies")
@pytest.mark.filterwarnings("ignore:lost. it burns")
def test_a_completion_that_takes_machines_along_is_to_blame():
    """Two for each way of calling that it fails, not one after another for ever."""
    rewards, errors, counts, _ = scored("a", "exit", "b", machines=20, lost=20)
    assert rewards == [1, None, 1] and counts["scoring/moved"] <= 5
    assert errors[0] is errors[2] is None and errors[1] == "dies: two machines were lost with its calls: it burns"


EDITED = """
import os
from pathlib import Path

def score(prompts, completions, **columns):
    if completions[0] == "edit":
        with open(__file__, "a") as file:
            file.write("# edited")
        os._exit(3)
    return [1.0] * len(completions)
"""


def test_a_worker_that_moves_finds_the_files_it_began_with_or_moves_on(tmp_path, monkeypatch):
    """The module is edited while its machine goes: all others have another file, and the last scores nothing."""
    (tmp_path / "edited_there.py").write_text(EDITED)
    monkeypatch.syspath_prepend(tmp_path)
    config = RewardConfig(functions=["edited_there:score"])
    with Rewards(config, TaskConfig(), place=lambda: Cluster(3)) as rewards:
        with pytest.warns(UserWarning) as said:
            (found,) = rewards.score([rollout("edit", 0)])
        assert found.reward is None and "it could not start again: the files of its rewards are not those" in found.error
    texts = [str(warning.message) for warning in said]
    assert any("lost: the files of its rewards are not those that it began with; all machines" in text for text in texts)


@pytest.mark.parametrize("place", [Here, lambda: Cluster(lost=0)], ids=["here", "on a machine that stays"])
def test_rewards_that_are_edited_while_the_run_goes_on_are_told(tmp_path, monkeypatch, place):
    (tmp_path / "edited_here.py").write_text(EDITED)
    monkeypatch.syspath_prepend(tmp_path)
    with Rewards(RewardConfig(functions=["edited_here:score"]), TaskConfig(), place=place) as rewards:
        rewards.score([rollout("edit", 0)])
        with pytest.warns(UserWarning, match="of edited_here:score have changed since it began") as said:
            assert rewards.score([rollout("a", 0)])[0].reward == 1
        with warnings.catch_warnings(action="error"):
            rewards.score([rollout("a", 0)])
    assert len(said) == 1


def test_a_wrong_name_costs_no_machine():
    """It is tried beside the leader first."""
    config = RewardConfig(functions=["tests.rewards.graders:lenght"], workers=2)
    other = Cluster()
    places = iter([other, Here()])
    with (
        Rewards(config, TaskConfig(), place=lambda: next(places)) as rewards,
        pytest.raises(ValueError, match=r"did you mean length\?$"),
    ):
        rewards.wait()
    assert other.moves == []


def test_what_is_closed_has_ended():
    here = Here()
    here.close()  # nothing yet
    with Rewards(RewardConfig(functions=["tests.rewards.graders:length"]), TaskConfig(), place=lambda: here) as rewards:
        rewards.wait()
        assert not here.leave("") and here.news() == []
    assert all_end([here.process.pid])
