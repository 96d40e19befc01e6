"""What a run takes of the GPU, against what `gspo plan` foretells of it."""

import memory
import pytest

pytestmark = pytest.mark.gpu
LARGE = {"hidden": 1024, "layers": 12, "heads": 16, "kv_heads": 8, "vocab_size": 32_000}
SMALL = {"hidden": 64, "layers": 2, "heads": 4, "kv_heads": 2, "vocab_size": 256}
CASES = ["all weights", "all weights, checkpointing", "bfloat16", "adapters", "mixture", "mixture, adapters, nf4"]


@pytest.mark.parametrize("name", CASES)
def test_a_run_takes_what_was_foretold(name, device, report):
    if device == "cpu" and name != "all weights":
        pytest.skip("the dry form tries one: each is a process of its own")
    if "nf4" in name:
        pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed (pip install 'gspo[quantized]')")
    told = memory.run(name, device, **(SMALL if device == "cpu" else LARGE))
    measured, check = told["measured"][1], f"memory ({name}): foretold over measured"
    if device == "cpu":  # of a process, in which so small a model is lost
        report.tell(f"{check}; not the model's alone", told["foretold"] / measured, "0.85 to 1.25 on a GPU")
    else:
        report.tell(f"memory ({name}): measured, GiB", measured / 2**30)
        report.check(check, told["foretold"] / measured, least=0.85, most=1.25)
