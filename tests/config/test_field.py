import dataclasses

from gspo.config.field import opt


def test_a_field_keeps_its_range_and_shares_no_list():
    made = dataclasses.make_dataclass("Made", [("rate", float, opt(0.5, low=0.25, high=1)), ("names", list, opt(["x"]))])
    assert dataclasses.fields(made)[0].metadata == {"low": 0.25, "high": 1, "choices": (), "path": False}
    made().names.append("y")
    assert (made().rate, made().names) == (0.5, ["x"])
