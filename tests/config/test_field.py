import dataclasses
from dataclasses import dataclass

import pytest

from gspo.config.field import opt


@dataclass(frozen=True)
class Settings:
    rate: float = opt(0.5, low=0.25, high=1)
    mode: str = opt("a", choices=("a", "b"))
    names: list = opt(["x"])


def test_a_field_keeps_its_default_and_its_range():
    rate, mode, _ = dataclasses.fields(Settings)
    assert rate.metadata == {"low": 0.25, "high": 1, "choices": (), "path": False}
    assert mode.metadata["choices"] == ("a", "b")
    assert (Settings().rate, Settings(rate=0.25).rate, Settings().mode) == (0.5, 0.25, "a")


def test_each_has_a_list_of_its_own():
    first, second = Settings(), Settings()
    first.names.append("y")
    assert (first.names, second.names, Settings().names) == (["x", "y"], ["x"], ["x"])
    with pytest.raises(dataclasses.FrozenInstanceError):
        first.rate = 1.0
