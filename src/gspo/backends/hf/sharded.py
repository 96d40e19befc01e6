"""A sharded causal language model: FSDP2 and expert parallelism, laid out by transformers' DistributedConfig.

Weights are DTensors, and each rank holds its shard. Only this module touches them. A forward pass runs inside one method of
the root module (`ROOT`), and the head runs inside its own module, because FSDP gathers weights when a module is called.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from transformers.distributed import DistributedConfig

from gspo.backends.hf.all_to_all_weights import Gathering, all_gather
from gspo.backends.hf.head import Head
from gspo.backends.hf.layers import Layers
from gspo.backends.hf.load import autocast_type, read_weights, ready
from gspo.backends.hf.mixed_precision_sharding import narrow_gathers
from gspo.backends.hf.model import DTYPES, HFModel
from gspo.config.policy import ModelConfig
from gspo.config.scale import ScaleConfig
from gspo.distributed.ranks import local, whole

T = TypeVar("T")
ROOT = "run_sharded"  # method of the root module in which forward passes run
VISIBLE_SECONDS = 10.0  # timeout in seconds for files written on another machine to become visible


def load_sharded(cfg: ModelConfig, scale: ScaleConfig, size: int) -> ShardedModel:
    """Loads this rank's shards of the model that `cfg` names. A collective call on all `size` ranks."""
    layout = DistributedConfig(
        fsdp_size=size // scale.data_parallel_replicas,
        dp_replicate_size=scale.data_parallel_replicas,
        ep_size=scale.expert_parallel,
    )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with narrow_gathers(autocast_type(cfg.autocast, device, DTYPES[cfg.dtype])):
        model, tokenizer = read_weights(cfg, distributed_config=layout)
    made = ready(ShardedModel, prepared(model, cfg), tokenizer, cfg)
    made.origin = cfg, layout
    return made


def prepared(model: Any, cfg: ModelConfig) -> Any:
    """Registers `ROOT` on the model for forward passes, and sets gradient reduction to a sum over all ranks."""
    check_tied(model, cfg)
    setattr(type(model), ROOT, lambda self, work: work())
    register_fsdp_forward_method(model, ROOT)
    head = model.get_output_embeddings()
    plain = head.forward
    head.forward = lambda states, work=None: plain(states) if work is None else work(states)
    for module in shards(model):
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
    return model


def check_tied(model: Any, cfg: ModelConfig) -> None:
    """Raises ValueError for tied embeddings whose rows the ranks do not divide: FSDP would train on a stale copy of them."""
    weight = model.get_input_embeddings().weight
    if model.get_output_embeddings().weight is weight and isinstance(weight, DTensor):
        ranks = weight.device_mesh.size(weight.device_mesh.ndim - 1)
        if len(weight) % ranks:
            raise ValueError(
                f"model.path = {cfg.path!r}: its embeddings are tied to its head, and {ranks} ranks do not divide "
                f"their {len(weight)} rows: choose scale.ranks / scale.data_parallel_replicas that do"
            )


def _fingerprint(p: Tensor) -> Tensor:
    """Fingerprint of a full weight to detect stale copies: sums of x, x^2 and |x|, [3] float64."""
    x = p.detach().double()
    return torch.stack([whole(x.sum()), whole((x * x).sum()), whole(x.abs().sum())])


def _shard_fingerprint(p: Any) -> tuple[tuple[int, ...], tuple[float, float]]:
    """The coordinates of this rank's shard of a weight, and its sum and sum of squares. Replicas of a shard must agree."""
    at = p.device_mesh.get_coordinate()
    part = tuple(place for place, placement in zip(at, p.placements) if not placement.is_replicate())
    mine = p.detach().to_local().double()
    return part, (float(mine.sum()), float((mine * mine).sum()))


def shards(model: nn.Module) -> list[Any]:
    """The FSDP modules, which gather their weights when they are called."""
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


class ShardedModel(HFModel):
    """An HFModel whose weights are sharded over the ranks. All methods are collective calls."""

    sharded = True
    running = False
    origin: tuple[ModelConfig, DistributedConfig]  # what the model was loaded from

    def run(self, work: Callable[[], T]) -> T:
        """Returns the result of `work`, a forward pass. Reshards first: a forward pass without a backward pass leaves the
        last weights gathered, and these would be stale after the optimizer has updated the shards.
        """
        if self.running:
            return work()
        self.reshard()
        self.running = True
        try:
            return getattr(self.model, ROOT)(work)
        finally:
            self.running = False
            if not torch.is_grad_enabled():
                self.reshard()

    def reshard(self) -> None:
        """Frees all gathered weights, so that the model's parameters are its shards again."""
        for module in shards(self.model):
            module.reshard()

    def hidden(self, **inputs: Any) -> Tensor:
        """As HFModel.hidden."""
        return self.run(lambda: super(ShardedModel, self).hidden(**inputs))

    def on_head(self, states: Tensor, work: Callable[[Head, Tensor], T]) -> T:
        """As HFModel.on_head, inside the head's module, where its weight is gathered."""
        linear: Any = self.model.get_output_embeddings()
        return self.run(lambda: linear(states, lambda states: work(self.head, states)))

    def named_parameters(self) -> Iterable[tuple[str, nn.Parameter]]:
        """The shards by name."""
        self.reshard()
        return self.model.named_parameters()

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Gathers each weight on rank 0, one at a time, by name. Other ranks send their rows and yield nothing."""
        gathering = Gathering(self.named_parameters())
        for name, p in gathering.weights.items():
            wanted = [[name], *[[]] * (gathering.size - 1)]
            yield from gathering.exchange(wanted, {name: p.dtype}, p.device).items()

    def layers(self) -> Iterator[dict[str, Tensor]]:
        """As HFModel.layers, gathered on rank 0. Other ranks send their rows and yield nothing."""
        gathering = Gathering(self.named_parameters())
        layers = Layers(self.model, gathering.weights, self.compute_dtype)
        for number, names in enumerate(layers.names):
            here = gathering.exchange([names, *[[]] * (gathering.size - 1)], layers.types, self.device)
            if gathering.number == 0:
                yield layers.named(number, here, self.device)

    @torch.no_grad()
    def prove(self, trained: Iterable[nn.Parameter]) -> None:
        """Checks that forward passes read the weights that the optimizer updates. trained: the optimizer's parameters.

        Raises RuntimeError with the weight's name if the optimizer holds another tensor, a forward pass would read a stale
        copy, or replicas of the model differ.
        """
        known, sharded = set(trained), dict(self.named_parameters())
        wrong = {name for name, p in sharded.items() if p.requires_grad and p not in known}
        objects = dict(self.model.named_parameters(remove_duplicate=False))
        for module in shards(self.model):
            module.unshard()
            for name, p in self.model.named_parameters(remove_duplicate=False):
                held = objects[name]
                if p is not held and not torch.allclose(
                    _fingerprint(p), _fingerprint(held.to(p.dtype)), rtol=1e-12, atol=1e-12
                ):
                    wrong.add(name)
            module.reshard()
        every = all_gather({name: _shard_fingerprint(p) for name, p in sharded.items()})
        for name in sharded:
            if len({one[name] for one in every}) > len({one[name][0] for one in every}):
                wrong.add(name)
        if wrong:
            raise RuntimeError(
                f"{', '.join(sorted(wrong)[:3])}: what the ranks read is not what the optimizer changes, or copies of it "
                f"differ, so {type(self.model).__name__} cannot be trained in shards with torch {torch.__version__}: set "
                "scale.ranks = 1, or wait for versions of torch and transformers that can"
            )

    def load(self, folder: str | Path) -> None:
        """Loads the weights of a model that `save` wrote."""
        cfg, layout = self.origin
        saved, _ = read_weights(dataclasses.replace(cfg, path=str(folder), revision=None), distributed_config=layout)
        with torch.no_grad():
            for (_, mine), theirs in zip(self.named_parameters(), saved.parameters()):
                local(mine).copy_(local(theirs))

    def save(self, folder: str | Path, merged: bool = False) -> None:
        """Writes the model in the `from_pretrained` format. The ranks take turns writing layers, so that none needs memory
        for more than three of them; rank 0 writes the remaining files. merged: for an inference engine, which gets most
        weights in the dtype of the matrix products.

        Raises OSError on all ranks if a write failed on one of them, or if rank 0 does not see another rank's files.
        """
        dtype = self.compute_dtype if merged else None
        files, problems = write_layers(self, Path(folder), dtype)
        if dist.get_rank() == 0:
            problems += wait_for_files(Path(folder), {file for file, _ in files.values()})
            try:
                self._write_rest(Path(folder), files, dtype or self.model.dtype)
            except Exception as error:  # tokenizers raises a plain Exception for a full disk
                problems.append(str(error))
        if failed := [text for one in all_gather(problems) for text in one]:
            raise OSError(failed[0])

    def _write_rest(self, folder: Path, files: dict[str, tuple[str, int]], dtype: torch.dtype) -> None:
        """Writes index, configuration and tokenizer. files: file name and size in bytes for each weight."""
        table = {
            "metadata": {"total_size": sum(size for _, size in files.values())},
            "weight_map": {name: files[name][0] for name in sorted(files)},
        }
        (folder / "model.safetensors.index.json").write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")
        config = copy.deepcopy(self.model.config)
        config.architectures = [type(self.model).__name__.removeprefix("FSDP")]
        config.dtype = str(dtype).removeprefix("torch.")
        del config.distributed_config
        config.save_pretrained(folder)
        self.model.generation_config.save_pretrained(folder)
        self.save_rest(folder)


def write_layers(
    model: ShardedModel, folder: Path, dtype: torch.dtype | None
) -> tuple[dict[str, tuple[str, int]], list[str]]:
    """Writes the weights as safetensors, one file per layer. In each round every rank gathers and writes one layer. Returns
    file name and size in bytes for each weight, and the error messages of this rank.
    """
    gathering = Gathering(model.named_parameters())
    layers, cpu = Layers(model.model, gathering.weights, dtype), torch.device("cpu")
    wrote: dict[str, tuple[str, int]] = {}
    problems: list[str] = []
    for begin in range(0, len(layers.names), gathering.size):
        number, wanted = begin + gathering.number, layers.names[begin : begin + gathering.size]
        here = gathering.exchange([*wanted, *[[]] * (gathering.size - len(wanted))], layers.types, cpu)
        if number < len(layers.names):
            saved = layers.named(number, here, cpu)
            file = f"model-{number + 1:05d}-of-{len(layers.names):05d}.safetensors"
            try:
                folder.mkdir(parents=True, exist_ok=True)
                save_file(saved, folder / file, metadata={"format": "pt"})
            except (OSError, SafetensorError) as error:  # go on: other ranks wait for this rank's rows
                problems.append(str(error))
            wrote |= {name: (file, x.nbytes) for name, x in saved.items()}
    return {name: place for part in all_gather(wrote) for name, place in part.items()}, problems


def wait_for_files(folder: Path, files: Iterable[str]) -> list[str]:
    """Error messages if files written by other ranks do not become visible here, because the folder is not shared."""
    until = time.monotonic() + VISIBLE_SECONDS
    while missing := sorted(file for file in files if not (folder / file).exists()):
        if time.monotonic() > until:
            return [f"{folder}: the leader does not see {missing[0]} of another rank: name a folder that all machines share"]
        time.sleep(0.1)
    return []
