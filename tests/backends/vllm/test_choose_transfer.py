"""Which way weights take, and what is refused before any is sent."""

import pytest

from gspo.backends.vllm.transfer import BroadcastTransfer, FolderTransfer
from tests.backends.vllm.places import AtPlace, way


def test_the_way_is_chosen_by_where_things_run(on_gpu):
    other, two = AtPlace("GPU-b"), AtPlace("GPU-b", "GPU-c")
    assert way(engines=[AtPlace("")]) is FolderTransfer and way("broadcast", engines=[AtPlace("")]) is BroadcastTransfer
    assert way(device=on_gpu, engines=[other, two]) is BroadcastTransfer
    assert way("folder", on_gpu, [other]) is FolderTransfer
    assert way(device=on_gpu, engines=[other], adapted=True) is FolderTransfer  # where the engine takes merged weights too
    for together in (
        [AtPlace("GPU-a")],
        [other, AtPlace("GPU-a")],
        [other, AtPlace("GPU-b", "GPU-a")],
        [AtPlace("")],
        [AtPlace("GPU-b", nccl="2.30.1")],
    ):
        assert way(device=on_gpu, engines=together) is FolderTransfer
    assert way(device=on_gpu, engines=[other], urls=["http://127.0.0.1:9"]) is FolderTransfer  # unless it is asked for
    assert way(device=on_gpu, engines=[other], engine_args={"data_parallel_size": 2}) is FolderTransfer
    assert way("broadcast", on_gpu, [other], urls=["http://127.0.0.1:9"]) is BroadcastTransfer
    assert way("broadcast", on_gpu, [AtPlace("")]) is BroadcastTransfer  # through this machine's memory, by gloo


def test_a_way_that_engines_cannot_take_is_refused(on_gpu, subtests):
    for engine, message in (
        (AtPlace("GPU-a"), "it shares the trainer's GPU, and NCCL takes no two ranks on one"),
        (AtPlace("GPU-b", nccl="2.30.1"), "its NCCL is 2.30.1, and the trainer's is 2.27.5"),
    ):
        with subtests.test(message):
            match = f'sampler.weight_transfer = "broadcast": http://127.0.0.1:9: {message}.*, or set "folder"'
            with pytest.raises(ValueError, match=match):
                way("broadcast", on_gpu, [engine])
