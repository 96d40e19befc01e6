from types import SimpleNamespace

import pytest

from gspo.agents.trajectories import Trajectory, TrajectoryGroup, groups_of, id_of, plain, trajectories_of

MESSAGE = {"role": "assistant", "content": "yes"}
OBJECT = SimpleNamespace(model_dump=lambda exclude_none: dict(MESSAGE))
CHOICE = SimpleNamespace(id="call-1", message=OBJECT)
RESPONSE = SimpleNamespace(choices=[CHOICE], id="response-1")


def test_any_form_of_a_message_is_a_dict():
    for item in (MESSAGE, {"message": MESSAGE, "id": "call-1"}, OBJECT, CHOICE, RESPONSE):
        assert plain(item) == MESSAGE
        assert Trajectory([{"role": "user", "content": "?"}, item]).messages() == [{"role": "user", "content": "?"}, MESSAGE]
    for item in (3, {"message": 5}):
        with pytest.raises(ValueError, match="holds an int"):
            plain(item)


def test_the_id_is_that_of_the_choice():
    assert id_of({"choices": [{"message": MESSAGE, "id": "call-1"}], "id": "response-1"}) == "call-1"
    assert id_of(CHOICE) == id_of(RESPONSE) == id_of({"message": MESSAGE, "id": "call-1"}) == "call-1"
    assert id_of(MESSAGE) is None and id_of(MESSAGE | {"id": "call-1"}) == "call-1"


GOOD = Trajectory([MESSAGE], 1.0)


def test_what_are_no_groups_of_trajectories():
    for given, why in (
        (None, r"groups = None, a NoneType: groups of trajectories are expected"),
        ({"groups": []}, r"groups = .*, a dict: groups"),
        (GOOD, r"groups = Trajectory.*: groups of trajectories are expected"),
        (TrajectoryGroup([GOOD, GOOD]), r"groups = .*a TrajectoryGroup: groups of trajectories are expected"),
        ([GOOD, GOOD], r"groups\[0\] = Trajectory.*: groups of trajectories are expected"),
        ([[1, 2]], r"groups\[0\]\[0\] = 1, an int: a trajectory is expected"),
        ([[GOOD, {"messages_and_choices": [], "reward": 1.0}]], r"groups\[0\]\[1\] = .*, a dict: a trajectory"),
        ([[Trajectory([MESSAGE], None)]], r"groups\[0\]\[0\]: reward = None, a NoneType: a number"),
        ([[Trajectory([MESSAGE], 1.0, turn_rewards=[None])]], r"turn_rewards\[0\] = None"),
        ([[Trajectory([MESSAGE], 1.0, metrics={"won": "yes"})]], "won = 'yes', a str: a number"),
    ):
        with pytest.raises(ValueError, match=why):
            groups_of(given)


class Fields(SimpleNamespace):
    """One can iterate over it, as over ART's trajectories."""

    def __iter__(self):
        return iter(vars(self).items())


def test_what_gives_its_fields_is_a_trajectory():
    art = Fields(messages_and_choices=[MESSAGE], reward=1.0, metrics={})
    assert trajectories_of([art]) == [art] == trajectories_of([[art]]) == [*groups_of([[art]])[0]]
    for given in (art, [art]):
        with pytest.raises(ValueError, match=r"groups.* = .*, a Fields: groups of trajectories"):
            groups_of(given)


def test_groups_in_any_form_are_groups():
    lost = ValueError("lost")
    art = SimpleNamespace(trajectories=[GOOD], exceptions=["as text"], metadata={"id": 1})
    made = groups_of(iter([[GOOD, lost], art, ()]))
    assert [[*group] for group in made] == [[GOOD], [GOOD], []] and groups_of([]) == []
    assert [group.exceptions for group in made] == [[lost], ["as text"], []] and made[1].metadata == {"id": 1}
    for given in ([[GOOD, lost]], [GOOD, lost], TrajectoryGroup([GOOD, lost]), [art]):
        assert trajectories_of(given) == [GOOD]
    for given, why in ((5, "groups = 5"), ([1], r"groups\[0\] = 1"), ("ab", "groups = 'ab'")):
        with pytest.raises(ValueError, match=why):
            trajectories_of(given)
