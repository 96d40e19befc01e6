"""What becomes of a worker and its calls where its machine is lost. tests/build/test_ray_rewards.py has a real cluster."""

import os
import signal

import pytest

from gspo.config.rewards import RewardConfig
from gspo.config.rollout import TaskConfig
from gspo.data.processes import GONE
from gspo.rewards.places import Here, MachineLost
from gspo.rewards.scorer import Rewards
from tests.data.tools import rollout
from tests.data.wishes import all_end

pytestmark = pytest.mark.filterwarnings("ignore:reward workers. ")


class Cluster(Here):
    """A place on machines that are lost as soon as a worker ends there, but for the last of them."""

    def __init__(self, machines=2):
        super().__init__()
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
            if self.leave("it burns"):
                raise MachineLost from None
            raise

    def leave(self, why):
        if len(self.names) == 1:
            return False
        self.moves.append(f"lost: {why}")
        self.names.pop(0)
        return True

    def news(self):
        told, self.moves = self.moves, []
        return told


def scored(*completions, **config):
    config = RewardConfig(functions=["tests.rewards.graders:dies"], **config)
    with Rewards(config, TaskConfig(), place=Cluster) as rewards:
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


def test_a_machine_that_is_lost_before_the_worker_is_ready():
    config = RewardConfig(functions=["tests.rewards.graders:length"], workers=2)
    with Rewards(config, TaskConfig(), place=Cluster) as rewards:
        os.kill(rewards.workers[0].process.pid, signal.SIGKILL)
        with pytest.warns(UserWarning, match="lost: it burns"):
            rewards.wait()
        assert [worker.place.name for worker in rewards.workers] == ["10.0.0.2", "10.0.0.1"]
        assert [r.reward for r in rewards.score([rollout("abc", 0), rollout("a", 1)])] == [3, 1]


def test_a_machine_on_which_a_worker_cannot_start_again_is_left(tmp_path, monkeypatch):
    """It may lack what the machine before had."""
    (tmp_path / "comes_and_goes.py").write_text("""
import os
from pathlib import Path

starts = Path(__file__).with_suffix(".starts")
with open(starts, "a") as file:
    file.write(".")
if starts.stat().st_size == 2:
    raise ImportError("not here")

def score(prompts, completions, **columns):
    if starts.stat().st_size == 1:
        os._exit(3)
    return [1.0] * len(completions)
""")
    monkeypatch.syspath_prepend(tmp_path)
    config = RewardConfig(functions=["comes_and_goes:score"])
    with Rewards(config, TaskConfig(), place=lambda: Cluster(3)) as rewards:
        with pytest.warns(UserWarning) as said:
            (found,) = rewards.score([rollout("a")])
        assert found.reward == 1 and rewards.workers[0].place.name == "10.0.0.3"
    texts = [str(warning.message) for warning in said]
    assert texts[0] == "lost: it burns" and "not here" in texts[1] and len(texts) == 2


def test_what_cannot_be_loaded_on_another_machine_says_where():
    config = RewardConfig(functions=["tests.rewards.graders:lenght"])
    with (
        Rewards(config, TaskConfig(), place=Cluster) as rewards,
        pytest.raises(ValueError, match=r"did you mean length\? \(on the machine 10.0.0.1\); all machines of"),
    ):
        rewards.wait()


def test_what_is_closed_has_ended():
    here = Here()
    here.close()  # nothing yet
    with Rewards(RewardConfig(functions=["tests.rewards.graders:length"]), TaskConfig(), place=lambda: here) as rewards:
        rewards.wait()
        assert not here.leave("") and here.news() == []
    assert all_end([here.process.pid])
