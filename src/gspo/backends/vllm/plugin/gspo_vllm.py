"""Runs inside vLLM's environment, without gspo: starts the server, and is loaded by each of its workers.

As a program, `python gspo_vllm.py --model MODEL --port 8000`: vLLM's OpenAI-compatible server, with its arguments and the
extensions that a gspo trainer needs. If GSPO_OWNED is set, the server and all its processes end when standard input closes,
so that it does not outlive a killed trainer. If GSPO_KEY is set, every request must carry it as a bearer token.
"""

import hmac
import os
import runpy
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

NEEDED = ("--enable-scale-out", "--logprobs-mode=processed_logprobs", "--worker-extension-cls=gspo_vllm.Extension",
          "--generation-config=vllm")  # fmt: skip
ROUTES = "--enable-return-routed-experts"
KEYED = "--middleware=__main__.Keyed"


def end_with_parent() -> None:
    """Kills this process group when standard input closes."""

    def wait() -> None:
        while os.read(0, 1024):
            pass
        os.killpg(os.getpgid(0), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def repair_cpu() -> None:
    """Fixes and completes what vLLM does on a CPU, in each worker."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        repair_reload()
        repair_seeds()
        repair_drafts()
        wire_routes()


def repair_reload() -> None:
    """Fixes weight reloads of expert layers. vLLM packs the weights for its kernel once, and copying new ones into the
    packed storage corrupts them silently. A new kernel packs them again.
    """
    from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod as method

    if not hasattr(method, "_setup_kernel"):  # another version of vLLM
        return
    setup = method._setup_kernel

    def anew(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.moe_kernel = None
        return setup(self, *args, **kwargs)

    method._setup_kernel = anew


def repair_seeds() -> None:
    """Fixes seeded sampling with chunked prefill. vLLM samples after each chunk, discards the token and rewinds the seeded
    generator; a CPU generator cannot rewind, so the engine dies. Hides the generators during these chunks.
    """
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner as Runner

    sample = Runner.sample_tokens

    def sample_tokens(self: Any, *args: Any, **options: Any) -> Any:
        batch = self.input_batch
        parts = self.discard_request_mask.np[: batch.num_reqs].nonzero()[0].tolist()
        generators = {i: batch.generators.pop(i) for i in parts if i in batch.generators}
        try:
            return sample(self, *args, **options)
        finally:
            batch.generators.update(generators)

    Runner.sample_tokens = sample_tokens


def repair_drafts() -> None:
    """Fixes speculative decoding at a temperature. vLLM's kernel writes the temperatures of drafted tokens into a copy, and
    their logits are divided by whatever memory holds.
    """
    import torch
    from vllm.v1.sample import rejection_sampler

    def expand(x: Any, ends: Any, num_tokens: int, replace_from: int = 0, replace_to: int = 0) -> Any:
        counts = torch.diff(ends, prepend=ends.new_zeros(1))
        return torch.where(x == replace_from, replace_to, x).repeat_interleave(counts, output_size=num_tokens)

    rejection_sampler.expand_batch_to_tokens = expand


def repair_adapters() -> None:
    """Keeps steps from loading the adapter. Requests inherit the `load_inplace` of the call that loaded it, so vLLM would
    read its folder again in every step: slow, and too early if new weights lie there.
    """
    from vllm.lora.worker_manager import WorkerLoRAManager as Manager

    activate = Manager.set_active_adapters

    def set_active_adapters(self: Any, requests: Any, mapping: Any) -> None:
        for request in requests:
            request.load_inplace = False
        activate(self, requests, mapping)

    Manager.set_active_adapters = set_active_adapters


def allow_routes() -> None:
    """Lets a CPU server start with --enable-return-routed-experts, which vLLM rejects there. `wire_routes` implements it."""
    from vllm.config import VllmConfig
    from vllm.platforms import current_platform

    verify = VllmConfig._verify_aux_output_compatibility

    def lenient(self: Any) -> Any:
        if current_platform.is_cpu() and self.aux_output_config.enabled and not self.use_v2_model_runner:
            current_platform.is_out_of_tree, out_of_tree = (lambda: True), current_platform.is_out_of_tree
            try:
                return verify(self)
            finally:
                current_platform.is_out_of_tree = out_of_tree
        return verify(self)

    VllmConfig._verify_aux_output_compatibility = lenient


class Steps:
    """Passes the routed experts of each step from a model runner to the scheduler."""

    def __init__(self, runner: Any, kv_cache_config: Any) -> None:
        from vllm.distributed.aux_output_connector.worker import get_aux_output_connector

        self.runner = runner
        self.connector = get_aux_output_connector(runner.model, runner.vllm_config, kv_cache_config)
        self.pending = None

    def ran(self) -> None:
        """After a forward pass: records which request each row belongs to."""
        batch = self.runner.input_batch
        count = batch.num_reqs
        rows = SimpleNamespace(
            req_ids=list(batch.req_ids),
            query_start_loc_np=self.runner.query_start_loc.np[: count + 1].copy(),
            num_computed_tokens_np=batch.num_computed_tokens_cpu[:count].copy(),
        )
        self.pending = self.connector.prepare_output(rows)

    def sampled(self, output: Any) -> Any:
        """After sampling: adds the experts to the output."""
        pending, self.pending = self.pending, None
        if pending is not None:
            counts = np.array([len(tokens) for tokens in output.sampled_token_ids])
            pending.enqueue_cpu_copy(counts, np.zeros_like(counts))
            output.aux_output_connector_output = pending.process_output()
        return output


def wire_routes() -> None:
    """Collects routed experts in a CPU's first model runner. vLLM does so only in its second one, which needs Triton."""
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner as Runner

    begin, execute, sample = Runner.initialize_kv_cache, Runner.execute_model, Runner.sample_tokens

    def initialize_kv_cache(self: Any, kv_cache_config: Any, is_profiling: Any = False, **options: Any) -> None:
        begin(self, kv_cache_config, is_profiling, **options)
        if self.vllm_config.aux_output_config.enabled and not is_profiling:
            self.gspo_steps = Steps(self, kv_cache_config)

    def execute_model(self: Any, scheduler_output: Any, *args: Any, **options: Any) -> Any:
        steps = getattr(self, "gspo_steps", None)
        if steps is not None:
            steps.connector.begin_step(scheduler_output.aux_output_connector_metadata)
        output = execute(self, scheduler_output, *args, **options)
        if steps is not None and scheduler_output.total_num_scheduled_tokens:
            steps.ran()
        return output

    def sample_tokens(self: Any, *args: Any, **options: Any) -> Any:
        output = sample(self, *args, **options)
        steps = getattr(self, "gspo_steps", None)
        return output if steps is None else steps.sampled(output)

    for method in (initialize_kv_cache, execute_model, sample_tokens):
        setattr(Runner, method.__name__, method)


class Keyed:
    """ASGI middleware in front of all routes: vLLM's own --api-key does not protect those that pause or swap weights."""

    def __init__(self, app: Any) -> None:
        self.app, self.expected = app, b"Bearer " + os.environ["GSPO_KEY"].encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """The ASGI entry point."""
        given = dict(scope.get("headers", ())).get(b"authorization", b"")
        if scope["type"] == "lifespan" or hmac.compare_digest(given, self.expected):
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await send({"type": "http.response.start", "status": 401, "headers": [(b"www-authenticate", b"Bearer")]})
            await send({"type": "http.response.body", "body": b"no or another key"})
        else:
            await send({"type": "websocket.close", "code": 1008})


class Extension:
    """Methods that vLLM mixes into its worker class."""

    def gspo_reload(self, folder: str) -> None:
        """Loads the weights from a Hugging Face folder."""
        self.gspo_put(weights_path=folder)

    def gspo_put(self, **weights: Any) -> None:
        """Loads weights, given as for vLLM's reload_weights, as they are or rounded on loading (online quantization): those
        of a quantized checkpoint would not get new scales. If that fails, leaves the group that they came from, which the
        trainer drops too (a GPU would wait behind it), and restores the layers, so that they can be loaded again.
        """
        import torch
        from vllm.config import set_current_vllm_config
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        model = self.model_runner.get_model()  # type: ignore[attr-defined]
        rounding = self.vllm_config.quant_config  # type: ignore[attr-defined]
        try:
            if rounding is not None and rounding.get_name() != "online":
                raise RuntimeError(
                    f"vLLM holds weights quantized by {rounding.get_name()!r}, and these cannot be replaced: start it with "
                    "the model as it is and, say, --quantization fp8_per_tensor"
                )
            rounds = rounding is not None or self.vllm_config.cache_config.cache_dtype != "auto"  # type: ignore[attr-defined]
            for parameter in model.parameters() if rounds else ():
                # A whole layer that is left out keeps what it holds; rounding would hide old weights, but no NaN.
                real = parameter.is_floating_point()
                parameter.data.fill_(float("nan") if real else torch.iinfo(parameter.dtype).max)
            self.reload_weights(**weights)  # type: ignore[attr-defined]
            for module in model.modules():
                # A head tied to the embedding is not among the weights, so vLLM does not update its copy packed for the CPU.
                if hasattr(module, "cpu_linear") and module.weight.numel():
                    module.quant_method.process_weights_after_loading(module)
        except BaseException:
            self.gspo_leave()
            with set_current_vllm_config(self.vllm_config):  # type: ignore[attr-defined]
                finalize_layerwise_reload(model, self.model_config)  # type: ignore[attr-defined]
            raise

    def gspo_place(self) -> dict:
        """Where this worker runs: its rank in the engine, of how many, device and NCCL version; whether it can sleep."""
        import torch

        parallel, device = self.vllm_config.parallel_config, self.device  # type: ignore[attr-defined]
        found = {
            "rank": parallel.data_parallel_index * parallel.world_size + self.rank,  # type: ignore[attr-defined]
            "workers": parallel.world_size * parallel.data_parallel_size,
            "device": device.type, "gpu": "", "nccl": "",
            "sleeps": device.type == "cuda" and bool(self.model_config.enable_sleep_mode),  # type: ignore[attr-defined]
        }  # fmt: skip
        if device.type == "cuda":
            found["gpu"] = str(torch.cuda.get_device_properties(device).uuid)
            found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        return found

    def gspo_join(self, address: str, port: str, backend: str, seconds: str, name: str) -> None:
        """Joins the trainer's process group through the store at this address. backend: a torch backend. seconds: timeout of
        each wait.
        """
        import gspo_transfer as transfer
        import torch

        self.gspo_leave()
        place, limit = self.gspo_place(), float(seconds)
        device = self.device if backend == "nccl" else torch.device("cpu")  # type: ignore[attr-defined]
        rank, size, mine = place["rank"] + 1, place["workers"] + 1, transfer.facing(address, int(port))
        store = transfer.store_at(address, int(port), size, limit)
        self.gspo_group = transfer.join(store, rank, size, backend, mine, device, limit)
        self.gspo_name, self.gspo_receiving = name, (device, limit)

    def gspo_leave(self) -> None:
        """Aborts the previous group, if any, and its pending operations: on a GPU, later work would queue behind them."""
        group, self.gspo_group = getattr(self, "gspo_group", None), None
        if group is not None:
            with suppress(RuntimeError):
                group.abort()

    def gspo_receive(self, name: str) -> None:
        """Loads the weights that the trainer broadcasts to the group of this name. Raises RuntimeError unless it is the
        current group: a request for another one is stale, and what is sent now is meant for the next.
        """
        import gspo_transfer as transfer

        if getattr(self, "gspo_group", None) is None or name != self.gspo_name:
            raise RuntimeError("the trainer has given up the group in which it was to send weights")
        self.gspo_put(weights_iterator=transfer.received(self.gspo_group, *self.gspo_receiving))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent))  # so that the workers can import this file
    os.environ.setdefault("VLLM_SERVER_DEV_MODE", "1")  # enables the routes that pause, swap weights and resume
    if "--enable-lora" in sys.argv:
        os.environ.setdefault("VLLM_ALLOW_RUNTIME_LORA_UPDATING", "1")
    sys.argv += NEEDED
    if os.environ.get("GSPO_KEY"):
        sys.argv.append(KEYED)
    if os.environ.get("GSPO_OWNED"):
        end_with_parent()
    if ROUTES in sys.argv:
        allow_routes()
    # This file stays the main module, so that the engine's process imports it as well.
    runpy.run_module("vllm.entrypoints.openai.api_server", run_name="__main__")
elif __name__ == "__mp_main__":
    if ROUTES in sys.argv:
        allow_routes()
elif "vllm" in sys.modules:
    if "--enable-lora" in sys.argv:  # the server's arguments, in the workers that it starts too
        repair_adapters()
    repair_cpu()
