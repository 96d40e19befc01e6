"""Runs inside vLLM's environment, which needs no gspo: starts its server, and is loaded by each of its workers.

As a program, `python gspo_vllm.py --model MODEL --port 8000`: vLLM's OpenAI-compatible server, its arguments, with what a
gspo trainer asks for. Where GSPO_OWNED is set it ends, with all its processes, when its standard input closes, so that no
server outlives a trainer that was killed.
"""

import os
import runpy
import signal
import sys
import threading
from pathlib import Path

NEEDED = ("--enable-scale-out", "--logprobs-mode=processed_logprobs", "--worker-extension-cls=gspo_vllm.Extension",
          "--generation-config=vllm")  # fmt: skip


def end_with_parent() -> None:
    """Kills this process group at the end of standard input."""

    def wait() -> None:
        while os.read(0, 1024):
            pass
        os.killpg(os.getpgid(0), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def repair_reload() -> None:
    """On a CPU vLLM packs expert weights for its kernel once. Copying new ones into the packed storage corrupts them
    silently; a kernel made anew packs them again.
    """
    from vllm.model_executor.layers.fused_moe import unquantized_fused_moe_method as room
    from vllm.platforms import current_platform

    method = room.UnquantizedFusedMoEMethod
    if not current_platform.is_cpu() or not hasattr(method, "_setup_kernel"):
        return
    setup = method._setup_kernel

    def anew(self, *args, **kwargs):
        self.moe_kernel = None
        return setup(self, *args, **kwargs)

    method._setup_kernel = anew


class Extension:
    """What vLLM mixes into its worker class."""

    def gspo_reload(self, folder: str) -> None:
        """Puts the weights of a Hugging Face folder in place."""
        self.reload_weights(weights_path=folder)  # type: ignore[attr-defined]
        for module in self.model_runner.get_model().modules():  # type: ignore[attr-defined]
            # A head tied to the embedding has no weights in the folder, so vLLM leaves its copy, packed for a CPU, as it is.
            if hasattr(module, "cpu_linear") and module.weight.numel():
                module.quant_method.process_weights_after_loading(module)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent))  # the workers find it by its name
    os.environ.setdefault("VLLM_SERVER_DEV_MODE", "1")  # its routes pause, swap weights and resume
    sys.argv += NEEDED
    if os.environ.get("GSPO_OWNED"):
        end_with_parent()
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__", alter_sys=True)
elif "vllm" in sys.modules:
    repair_reload()
