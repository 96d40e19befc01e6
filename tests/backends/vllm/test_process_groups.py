"""Whether an engine's workers can be joined, and whose fault it is where they cannot."""

import pytest

from gspo.backends.vllm.errors import EngineError
from gspo.backends.vllm.process_groups import joined
from tests.backends.vllm.places import CPU, AtPlace, way


@pytest.mark.parametrize(
    ("name", "places", "message"),
    [
        ("http://engine.invalid:9", AtPlace("").places, "gaierror"),
        ("http://127.0.0.1:99999", AtPlace("").places, "ValueError: Port out of range"),
    ],
)
def test_an_engine_that_cannot_be_joined_is_at_fault_itself(name, places, message):
    """The others go on: any other error would end the run, or leave those who come back waiting."""
    engine = AtPlace()
    engine.name, engine.places = name, places
    with pytest.raises(EngineError, match=f"did not find one another at {name}: {message}"):
        joined(engine, CPU, 0)


HERE = {"rank": 0, "workers": 1, "device": "cpu", "gpu": "", "nccl": "", "sleeps": False}


@pytest.mark.parametrize(
    "odd",
    [
        [None], [{}], [HERE | {"workers": True}], [HERE | {"workers": 0}], [HERE | {"rank": -1}], [HERE, HERE],
        [HERE | {"workers": 2}, HERE | {"rank": 1, "workers": 3}],
    ],
    ids=str,
)  # fmt: skip
def test_places_that_cannot_be_are_the_engines_fault(on_gpu, odd):
    """Wherever they are asked for."""
    engine = AtPlace()
    engine.places = odd
    with pytest.raises(EngineError, match=r"http://127.0.0.1:9: .*(where a worker is|places of workers)"):
        joined(engine, CPU, 0)
    for device in (CPU, on_gpu):
        with pytest.raises(ValueError, match=r"http://127.0.0.1:9 does not say where its workers are: start it with this"):
            way("broadcast", device, [engine])
    with pytest.raises(EngineError, match=r"http://127.0.0.1:9"):
        way("auto", on_gpu, [engine])
