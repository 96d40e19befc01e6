import dataclasses
from dataclasses import dataclass

from gspo.config.field import opt


@dataclass(frozen=True)
class Settings:
    rate: float = opt(0.5, low=0.25, high=1)
    mode: str = opt("a", choices=("a", "b"))
    names: list = opt(["x"])


def test_a_field_keeps_its_default_and_its_range_and_shares_no_list():
    rate, mode, _ = dataclasses.fields(Settings)
    assert rate.metadata == {"low": 0.25, "high": 1, "choices": (), "path": False}
    assert mode.metadata["choices"] == ("a", "b")
    first, second = Settings(), Settings(rate=0.25)
    first.names.append("y")
    assert (first.rate, second.rate, first.mode) == (0.5, 0.25, "a")
    assert (first.names, second.names, Settings().names) == (["x", "y"], ["x"], ["x"])
