"""Which way weights take, and what is refused before any is sent."""

import pytest
import torch

from gspo.backends.vllm.transfer import BroadcastTransfer, FolderTransfer, IpcTransfer
from tests.backends.vllm.engines import CPU
from tests.backends.vllm.places import AtPlace, way


def test_the_way_is_chosen_by_where_things_run(on_gpu):
    other, two = AtPlace("GPU-b"), AtPlace("GPU-b", "GPU-c")
    assert way(engines=[AtPlace("")]) is FolderTransfer and way("broadcast", engines=[AtPlace("")]) is BroadcastTransfer
    assert way(device=on_gpu, engines=[other, two]) is BroadcastTransfer
    assert way("folder", on_gpu, [other]) is FolderTransfer
    assert way(device=on_gpu, engines=[other], adapted=True) is FolderTransfer  # where the engine takes merged weights too
    for together in (
        [other, AtPlace("GPU-a")],
        [other, AtPlace("GPU-b", "GPU-a")],
        [AtPlace("")],
        [AtPlace("GPU-b", nccl="2.30.1")],
    ):
        assert way(device=on_gpu, engines=together) is FolderTransfer
    assert way(device=on_gpu, engines=[AtPlace("GPU-a")]) is IpcTransfer
    assert way("ipc", on_gpu, [AtPlace("GPU-a")], urls=["http://127.0.0.1:9"]) is IpcTransfer
    assert way(device=on_gpu, engines=[other], urls=["http://127.0.0.1:9"]) is FolderTransfer  # unless it is asked for
    assert way(device=on_gpu, engines=[other], engine_args={"data_parallel_size": 2}) is FolderTransfer
    assert way("broadcast", on_gpu, [other], urls=["http://127.0.0.1:9"]) is BroadcastTransfer
    assert way("broadcast", on_gpu, [AtPlace("")]) is BroadcastTransfer  # through this machine's memory, by gloo


def test_a_way_that_engines_cannot_take_is_refused(on_gpu, subtests):
    for way_, device, engine, message in (
        ("broadcast", on_gpu, AtPlace("GPU-a"), "it shares the trainer's GPU, and NCCL takes no two ranks on one"),
        ("broadcast", on_gpu, AtPlace("GPU-b", nccl="2.30.1"), "its NCCL is 2.30.1, and the trainer's is 2.27.5"),
        ("ipc", on_gpu, AtPlace("GPU-a", "GPU-b"), "it is not on the trainer's GPU alone"),
        ("ipc", on_gpu, AtPlace(""), "the trainer's device is cuda, and its own cpu"),
        ("ipc", CPU, AtPlace("GPU-a"), "the trainer's device is cpu, and its own cuda"),
    ):
        with subtests.test(message):
            match = f'sampler.weight_transfer = "{way_}": http://127.0.0.1:9: {message}.*, or set "folder"'
            with pytest.raises(ValueError, match=match):
                way(way_, device, [engine])


def test_on_a_cpu_both_see_the_exchange(tmp_path):
    here = AtPlace("")
    assert way("ipc", engines=[here], exchange=tmp_path) is IpcTransfer
    assert way(engines=[here], exchange=tmp_path) is FolderTransfer  # unless it is asked for
    here.reads = False  # as one elsewhere, to which the folder's files come later
    with pytest.raises(ValueError, match=r"http://127.0.0.1:9: it read other bytes in the trainer's memory, or set"):
        way("ipc", engines=[here], exchange=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_gpu_whose_memory_cannot_be_shared_has_the_folder(tmp_path, monkeypatch):
    def refuses(*_, **options):
        raise RuntimeError("pidfd_getfd: Operation not permitted")

    gpu, device = type("Properties", (), {"uuid": "GPU-a"}), torch.device("cuda", 0)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: gpu)
    monkeypatch.setattr("torch.cuda.nccl.version", lambda: (2, 27, 5))
    monkeypatch.setattr("torch.empty", refuses)
    assert way(device=device, engines=[AtPlace("GPU-a")], exchange=tmp_path) is FolderTransfer
    with pytest.raises(ValueError, match=r"it cannot read the trainer's memory .*Operation not permitted.*, or set"):
        way("ipc", device, [AtPlace("GPU-a")], exchange=tmp_path)
