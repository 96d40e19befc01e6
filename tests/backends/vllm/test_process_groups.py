from gspo.backends.vllm.errors import EngineError
from gspo.backends.vllm.fleet import Member
from gspo.backends.vllm.transfer import BroadcastTransfer
from tests.backends.vllm.engines import CPU, Bigrams
from tests.backends.vllm.places import AtPlace


def test_an_engine_that_cannot_be_joined_is_at_fault_itself():
    """The others go on: any other error would end the run."""
    engine, transfer = AtPlace(""), BroadcastTransfer(CPU)
    engine.name, member = "http://engine.invalid:9", Member(engine, None)
    transfer.commit(Bigrams(1))
    assert isinstance(transfer.send({member: 0}, 1)[member], EngineError)
