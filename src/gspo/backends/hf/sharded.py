"""A causal language model in shards: FSDP2 and expert parallelism, as transformers' DistributedConfig lays them out.

Weights are DTensors, of which each rank holds its part. Only what stands here touches them. A forward pass runs inside one
method of the model's root, `run`, and the head inside its own module: FSDP gathers the weights of whatever it sees called.
"""

from __future__ import annotations

import copy
import dataclasses
import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
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

from gspo.backends.hf.all_to_all_weights import Gathering
from gspo.backends.hf.head import Head
from gspo.backends.hf.layers import Layers
from gspo.backends.hf.load import autocast_type, read_weights, ready
from gspo.backends.hf.mixed_precision_sharding import narrow_gathers
from gspo.backends.hf.model import DTYPES, HFModel
from gspo.config.policy import ModelConfig
from gspo.config.scale import ScaleConfig
from gspo.distributed.ranks import whole

T = TypeVar("T")
ROOT = "run_sharded"  # the root's method that forward passes run in
SEEN = 10.0  # seconds until one machine must see what another has written


def load_sharded(cfg: ModelConfig, scale: ScaleConfig, size: int) -> ShardedModel:
    """This rank's shards of the model that `cfg` names, of `size` ranks. Every rank calls it at the same time."""
    layout = DistributedConfig(fsdp_size=size // scale.replicas, dp_replicate_size=scale.replicas, ep_size=scale.experts)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with narrow_gathers(autocast_type(cfg.autocast, device, DTYPES[cfg.dtype])):
        model, tokenizer = read_weights(cfg, distributed_config=layout)
    made = ready(ShardedModel, prepared(model, cfg), tokenizer, cfg)
    made.origin = cfg, layout
    return made


def prepared(model: Any, cfg: ModelConfig) -> Any:
    """The model with a root that forward passes can run in, whose gradients are sums over all ranks."""
    check_tied(model, cfg)
    setattr(type(model), ROOT, lambda self, work: work())
    register_fsdp_forward_method(model, ROOT)
    head = model.get_output_embeddings()
    head.forward = partial(_head_forward, head.forward)
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
                f"model.path = {cfg.path!r}: its embeddings are tied to its head, and {ranks} ranks do not divide their "
                f"{len(weight)} rows: choose scale.ranks / scale.replicas that do, or give a model that is not tied"
            )


def _head_forward(plain: Callable[[Tensor], Tensor], states: Tensor, work: Callable[[Tensor], Any] | None = None) -> Any:
    return plain(states) if work is None else work(states)


def _sums(p: Tensor) -> Tensor:
    """Sums over all of a weight, [3] float64, that tell it from an older self: of its numbers, their squares and sizes."""
    x = p.detach().double()
    return torch.stack([whole(x.sum()), whole((x * x).sum()), whole(x.abs().sum())])


def _held(p: Any) -> tuple[tuple[int, ...], tuple[float, float]]:
    """Which part of a weight this rank holds, and sums over it: those who hold the same part have the same."""
    at = p.device_mesh.get_coordinate()
    part = tuple(place for place, placement in zip(at, p.placements) if not placement.is_replicate())
    mine = p.detach().to_local().double()
    return part, (float(mine.sum()), float((mine * mine).sum()))


def shards(model: nn.Module) -> list[Any]:
    """The modules that gather their weights when they are called."""
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


@dataclass(frozen=True)
class GatheredHead:
    """head.Head of a weight in shards: its work is done inside the head's module, where the weight is whole."""

    model: ShardedModel

    def _inside(self, states: Tensor, work: Callable[[Head, Tensor], T]) -> T:
        linear: Any = self.model.model.get_output_embeddings()
        scale, cap = self.model.logit_scale, self.model.logit_cap

        def run(states: Tensor) -> T:
            return work(Head(linear.weight, getattr(linear, "bias", None), scale, cap), states)

        return self.model.run(lambda: linear(states, run))

    def logits(self, states: Tensor) -> Tensor:
        """As Head.logits."""
        return self._inside(states, Head.logits)

    def logprobs(
        self, states: Tensor, targets: Tensor, temperature: float = 1.0, entropy: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """As Head.logprobs."""
        return self._inside(states, lambda head, states: head.logprobs(states, targets, temperature, entropy))


class ShardedModel(HFModel):
    """An HFModel of which each rank holds its shards. All ranks call each of its methods at the same time."""

    sharded = True
    running = False
    origin: tuple[ModelConfig, DistributedConfig]  # what it was loaded from

    def run(self, work: Callable[[], T]) -> T:
        """What `work`, a forward pass, returns. It begins with shards: a pass whose backward was not run leaves the last of
        the weights whole, and they would stay as they are when the optimizer has changed its shards.
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

    def precision(self) -> AbstractContextManager:
        """As HFModel.precision, without keeping the cast weights: those of all layers, whole, would lie on every rank."""
        return torch.autocast(self.device.type, self.autocast, cache_enabled=False) if self.autocast else nullcontext()

    def reshard(self) -> None:
        """Gives up what is gathered: the model's parameters are its shards again."""
        for module in shards(self.model):
            module.reshard()

    def hidden(self, **inputs: Any) -> Tensor:
        """As HFModel.hidden."""
        return self.run(lambda: super(ShardedModel, self).hidden(**inputs))

    @property
    def head(self) -> Any:
        """As HFModel.head."""
        return GatheredHead(self)

    def named_parameters(self) -> Iterable[tuple[str, nn.Parameter]]:
        """The shards by name."""
        self.reshard()
        return self.model.named_parameters()

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Each weight by name, whole, one at a time, for the rank that leads. The others send their rows and get none."""
        gathering = Gathering(self.named_parameters())
        for name, p in gathering.weights.items():
            wanted = [[name], *[[]] * (gathering.size - 1)]
            yield from gathering.exchange(wanted, {name: p.dtype}, p.device).items()

    def layers(self) -> Iterator[dict[str, Tensor]]:
        """As HFModel.layers, for the rank that leads. The others send their rows and get none."""
        gathering = Gathering(self.named_parameters())
        layers = Layers(self.model, gathering.weights, self.compute_dtype)
        for number, names in enumerate(layers.names):
            here = gathering.exchange([names, *[[]] * (gathering.size - 1)], layers.types, self.device)
            if gathering.number == 0:
                yield layers.named(number, here, self.device)

    @torch.no_grad()
    def prove(self, trained: Iterable[nn.Parameter]) -> None:
        """Whether passes read what the optimizer changes. trained: its parameters. Raises RuntimeError, naming the weight,
        where the optimizer has another, where passes read a stale copy, or where copies of the model differ.
        """
        known, sharded = set(trained), dict(self.named_parameters())
        wrong = {name for name, p in sharded.items() if p.requires_grad and p not in known}
        objects = dict(self.model.named_parameters(remove_duplicate=False))
        for module in shards(self.model):
            module.unshard()
            for name, p in self.model.named_parameters(remove_duplicate=False):
                held = objects[name]
                if p is not held and not torch.allclose(_sums(p), _sums(held.to(p.dtype)), rtol=1e-12, atol=1e-12):
                    wrong.add(name)
            module.reshard()
        every = gathered({name: _held(p) for name, p in sharded.items()})
        for name in sharded:
            wrong |= {name} if len({one[name] for one in every}) > len({one[name][0] for one in every}) else set()
        if wrong:
            raise RuntimeError(
                f"{', '.join(sorted(wrong)[:3])}: what the ranks read is not what the optimizer changes, or copies of it "
                f"differ, so {type(self.model).__name__} cannot be trained in shards with torch {torch.__version__}: set "
                "scale.ranks = 1, or wait for versions of torch and transformers that can"
            )

    def load(self, folder: str | Path) -> None:
        """Take over the weights of a model that `save` wrote."""
        cfg, layout = self.origin
        saved, _ = read_weights(dataclasses.replace(cfg, path=str(folder), revision=None), distributed_config=layout)
        with torch.no_grad():
            shards: Any = zip((p for _, p in self.named_parameters()), saved.parameters())
            for mine, theirs in shards:
                mine.to_local().copy_(theirs.to_local())

    def save(self, folder: str | Path, dtype: torch.dtype | None = None) -> None:
        """Write the model as `from_pretrained` reads it. The ranks write its layers in turns, so that none has room
        for more than three of them; the first writes what is beside them. Raises OSError on all ranks, where writing
        failed on one or the first does not see what another wrote.

        dtype: as in layers.py.
        """
        files, problems = write_layers(self, Path(folder), dtype)
        if dist.get_rank() == 0:
            problems += unseen(Path(folder), {file for file, _ in files.values()})
            try:
                self._write_rest(Path(folder), files, dtype or self.model.dtype)
            except Exception as error:  # tokenizers has no kind of its own for a full disk
                problems.append(str(error))
        if failed := [text for one in gathered(problems) for text in one]:
            raise OSError(failed[0])

    def save_whole(self, folder: str | Path, merged: bool = True) -> None:
        """Write the model for an engine: what it would round to the type of its matrix products travels in that type."""
        self.save(folder, self.compute_dtype)

    def _write_rest(self, folder: Path, files: dict[str, tuple[str, int]], dtype: torch.dtype) -> None:
        """What is beside the weights. files: of each weight, its file and bytes."""
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
        self.tokenizer.save_pretrained(folder)


def write_layers(
    model: ShardedModel, folder: Path, dtype: torch.dtype | None = None
) -> tuple[dict[str, tuple[str, int]], list[str]]:
    """Writes the weights of a model as safetensors, a file a layer, as many layers at a time as there are ranks: each gets
    one whole. dtype: as in ShardedModel.save. Returns of each weight its file and bytes, and what this rank could not write.
    """
    gathering = Gathering(model.named_parameters())
    layers, cpu = Layers(model.model, gathering.weights, dtype), torch.device("cpu")
    wrote: dict[str, tuple[str, int]] = {}
    problems: list[str] = []
    for begin in range(0, len(layers.names), gathering.size):
        wanted = layers.names[begin : begin + gathering.size]
        here = gathering.exchange([*wanted, *[[]] * (gathering.size - len(wanted))], layers.types, cpu)
        saved = layers.named(begin + gathering.number, here, cpu)
        if saved:
            file = f"model-{begin + gathering.number + 1:05d}-of-{len(layers.names):05d}.safetensors"
            try:
                folder.mkdir(parents=True, exist_ok=True)
                save_file(saved, folder / file, metadata={"format": "pt"})
            except (OSError, SafetensorError) as error:  # a full disk; the others wait for this rank's rows all the same
                problems.append(str(error))
            wrote |= {name: (file, x.numel() * x.element_size()) for name, x in saved.items()}
    return {name: place for part in gathered(wrote) for name, place in part.items()}, problems


def unseen(folder: Path, files: Iterable[str]) -> list[str]:
    """What is wrong where this rank does not see what others wrote into a folder: it lies on disks of their own."""
    until = time.monotonic() + SEEN
    while missing := sorted(file for file in files if not (folder / file).exists()):
        if time.monotonic() > until:
            return [f"{folder}: the leader does not see {missing[0]} there, which another rank wrote: name a folder that "
                    "all machines share"]  # fmt: skip
        time.sleep(0.1)
    return []


def gathered(mine: T) -> list[T]:
    """What every rank says, by number."""
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, mine)
    return every
