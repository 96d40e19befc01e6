import asyncio
from types import SimpleNamespace

import pytest

from gspo.agents.trajectories import TrainCall, Trajectory, TrajectoryGroup, id_of, plain

MESSAGE = {"role": "assistant", "content": "yes"}
OBJECT = SimpleNamespace(model_dump=lambda exclude_none: dict(MESSAGE))
CHOICE = SimpleNamespace(id="call-1", message=OBJECT)
RESPONSE = SimpleNamespace(choices=[CHOICE], id="response-1")


@pytest.mark.parametrize("item", [MESSAGE, {"message": MESSAGE, "id": "call-1"}, OBJECT, CHOICE, RESPONSE])
def test_any_form_of_a_message_is_a_dict(item):
    assert plain(item) == MESSAGE
    assert Trajectory([{"role": "user", "content": "?"}, item]).messages() == [{"role": "user", "content": "?"}, MESSAGE]


def test_the_id_is_that_of_the_choice():
    assert id_of(CHOICE) == id_of(RESPONSE) == id_of({"message": MESSAGE, "id": "call-1"}) == "call-1"
    assert id_of(MESSAGE) is None and id_of(MESSAGE | {"id": "call-1"}) == "call-1"
    assert id_of({"role": "user", "content": "?", "id": "row-7"}) is None  # not the policy's


def test_what_is_no_message():
    with pytest.raises(ValueError, match="holds a int"):
        plain(3)


def test_a_group_sets_exceptions_aside():
    kept, lost = Trajectory(), ValueError("lost")
    group = TrajectoryGroup([kept, lost], {"id": 7})
    assert [*group] == [kept] and len(group) == 1 and group.exceptions == [lost] and group.metadata == {"id": 7}
    coroutine = asyncio.sleep(0)
    with pytest.raises(ValueError, match=r"still to be awaited: see gspo\.gather"):
        TrajectoryGroup([coroutine])
    coroutine.close()


def test_a_trajectory_notes_its_time_and_its_log():
    made = Trajectory()
    made.log("begun")
    assert made.finish() is made and made.metrics["duration"] >= 0 and made.logs == ["begun"]
    assert Trajectory().metrics == {}  # each has its own


@pytest.mark.parametrize("rate", [0, -1e-5, 2.0, float("nan")])
def test_learning_rates_that_are_none(rate):
    with pytest.raises(ValueError, match="must be above 0 and at most 1"):
        TrainCall(learning_rate=rate)
    TrainCall(learning_rate=1.0)
