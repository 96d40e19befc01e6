"""The policy on a transformers causal language model: log-probabilities of the sampled tokens, with gradients."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers.distributed import load_optimizer_distributed, save_optimizer_distributed

from gspo.backends.hf import attention
from gspo.backends.hf.critic import Critic
from gspo.backends.hf.model import HFModel, example_token_ids
from gspo.backends.hf.one_sequence import one_sequence_a_row
from gspo.backends.hf.routers import no_routers, routers, unknown_experts
from gspo.backends.hf.routing import Record, Replay, checkpoint_contexts, choices, record
from gspo.learner import layout
from gspo.learner.offload import Resting
from gspo.objective.completions import index_select_deterministic
from gspo.types import Batch, Outputs, Routing


class HFPolicy:
    """ports.Policy on a transformers causal language model.

    Args:
        temperature: Sampling temperature at which log-probabilities are computed.
        layout: "padded", "shared" or "auto". "auto" picks the faster of "padded" and "shared" for each batch, and
            "padded" on devices whose gather cost is not known (layout.gathering).
        rests: Offload the model to host memory while it is not `awake`.

    Raises:
        ValueError: The model does not support the layout.
    """

    def __init__(
        self,
        model: HFModel,
        temperature: float = 1.0,
        layout: str = "padded",
        gradient_checkpointing: bool = False,
        critic: Critic | None = None,
        router_logits: bool = False,
        rests: bool = False,
    ):
        self.model = model
        self.temperature = temperature
        self.unshared = ""  # why "auto" fell back to "padded"
        read = [model, *([critic.own] if critic is not None and critic.own else [])]
        self.layout = self._resolve_layout(layout, read)
        self.shares_prompts = self.layout != "padded"
        self.sparse = bool(routers(model.model))
        self.choices = (
            choices(model.model, lambda: model.hidden(input_ids=example_token_ids(model, 2))) if self.sparse else None
        )
        # Set if there are experts with an unknown router.
        self.unseen = no_routers(model.model) if unknown_experts(model.model) else ""
        self.critic = critic
        self.router_logits = router_logits
        self.resting = Resting(model.model) if rests else None
        self.gradient_checkpointing = gradient_checkpointing
        self.models = [one.model for one in read]
        for one in self.models if gradient_checkpointing else []:
            enable = getattr(one, "activation_checkpointing_enable", one.gradient_checkpointing_enable)  # its newer name
            enable({"use_reentrant": False, "context_fn": checkpoint_contexts})

    def _resolve_layout(self, requested: str, models: list[HFModel]) -> str:
        """Returns the requested layout, or the fallback for "auto". Raises ValueError if the models do not support it."""
        name = type(models[0].model).__name__
        if requested == "auto" and layout.gathering(models[0].device) is None:
            self.unshared = 'on a GPU prompts are shared only where train.layout = "shared" says so'
            return "padded"
        if requested == "padded":
            return requested
        why = next((why for model in models if (why := attention.refusal(model))), "")
        if why and requested == "shared":
            raise ValueError(f'train.layout = "shared" does not work with {name} here: {why}. Use train.layout = "padded"')
        self.unshared = why and f"{name} cannot share prompts: {why}"
        return "padded" if why else requested

    def _rows(self, batch: Batch) -> layout.Rows:
        """Lays the batch out as rows of tokens."""
        least = layout.gathering(self.model.device) if self.layout == "auto" else None
        if self.layout == "shared" or (least is not None and layout.worth_sharing(batch.forest, least)):
            return layout.shared(batch)
        return layout.padded(batch, self.model.pad_id)

    @property
    def device(self) -> torch.device:
        """The model's device."""
        return self.model.device

    def on_device(self) -> AbstractContextManager[None]:
        """Context for forward passes: loads an offloaded model to its device meanwhile."""
        return nullcontext() if self.resting is None else self.resting.on_device()

    def parameters(self) -> Iterable[nn.Parameter]:
        """The trainable parameters of the model and of the critic."""
        critics = [] if self.critic is None else list(self.critic.parameters())
        return (p for p in [*(p for _, p in self.model.named_parameters()), *critics] if p.requires_grad)

    def weights(self) -> Iterable[tuple[str, Tensor]]:
        """The language model's weights by name, unsharded."""
        return self.model.tensors()

    def layers(self) -> Iterable[dict[str, Tensor]]:
        """The same weights layer by layer, as an inference engine reads them (HFModel.layers)."""
        return self.model.layers()

    def state_dict(self) -> dict[str, Any]:
        """The critic's weights; empty without a critic."""
        return {} if self.critic is None else self.critic.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from `state_dict()`."""
        if self.critic is not None:
            self.critic.load_state_dict(state)

    def prove(self, trained: Iterable[nn.Parameter]) -> None:
        """Raises RuntimeError if forward passes read other weights than `trained`, the optimizer's parameters."""
        self.model.prove(trained)

    def save_moments(self, adamw: torch.optim.Optimizer, folder: str) -> None:
        """Writes the moments of these weights' optimizer, keyed by weight name. Each rank writes its shards."""
        try:
            save_optimizer_distributed(self.model.model, adamw, folder)
        except BaseException as error:  # torch's CheckpointException, raised on all ranks, is not an Exception
            if type(error).__name__ != "CheckpointException":
                raise
            raise OSError(f"{folder} could not be written ({error})") from error

    def load_moments(self, adamw: torch.optim.Optimizer, folder: str) -> None:
        """Loads what `save_moments` wrote, also with another number of ranks."""
        load_optimizer_distributed(self.model.model, adamw, folder)

    def load(self, folder: str) -> None:
        """Loads the weights that `save` wrote."""
        self.model.load(folder)

    def save(self, folder: str, *, merged: bool = False) -> None:
        """Writes model (safetensors) and tokenizer in Hugging Face format. With LoRA: only the adapters, or with `merged`
        the full model with the adapters merged in.
        """
        self.model.save(folder, merged)

    def forward(self, batch: Batch, *, entropy: bool = False, routing: bool = False, replay: bool = False) -> Outputs:
        """One forward pass: log-probabilities at the sampling temperature, plus the optional outputs that are enabled."""
        return self.model.run(lambda: self._forward(batch, entropy, routing, replay))

    @one_sequence_a_row()
    def _forward(self, batch: Batch, entropy: bool, routing: bool, replay: bool) -> Outputs:
        rows, device = self._rows(batch), self.model.device

        def to_device(x: Tensor) -> Tensor:
            return x.to(device, non_blocking=True)  # the GPU may still be running the previous pass

        # Only gradient checkpointing depends on the mode: dropout is 0 in both.
        for model in self.models:
            model.train(self.gradient_checkpointing and torch.is_grad_enabled())
        with ExitStack() as stack:
            replayed = stack.enter_context(Replay(self.model.model, _row_routes(batch, rows))) if replay else None
            recorded, logits = None, self.router_logits and torch.is_grad_enabled()
            if routing and self.sparse:
                recorded = stack.enter_context(record(self.model.model, entropy=True, logits=logits))
            inputs: dict[str, Any] = {"input_ids": to_device(rows.tokens), "position_ids": to_device(rows.position)}
            if rows.forest is not None:
                inputs |= attention.forest_inputs(rows.forest, device)
            hidden = self.model.hidden(**inputs)
            routed = None if recorded is None else _routing(recorded, replayed, to_device(rows.place), logits)
        before = to_device(rows.before)
        states = index_select_deterministic(hidden.flatten(0, 1), before)  # [N, H]
        values = None if self.critic is None else self.critic(states, before, inputs)
        targets = to_device(batch.forest.tokens[batch.node])
        logp, entropies = self.model.on_head(
            states, lambda head, states: head.logprobs(states, targets, self.temperature, entropy)
        )
        return Outputs(logp, entropies, routed, values)


def _row_routes(batch: Batch, rows: layout.Rows) -> Tensor:
    """batch.routes [T, layers, k] in the order that routing.Replay expects: [layers, B*L, k], -1 at padding."""
    if batch.routes is None:
        raise ValueError("routing cannot be replayed: these completions carry no routes")
    return batch.routes[rows.node].masked_fill(rows.node[:, None, None] < 0, -1).transpose(0, 1)


def _routing(recorded: Record, replayed: Replay | None, place: Tensor, with_logits: bool) -> Routing:
    """The recorded routing of the T forest tokens, gathered from their positions `place` in the rows."""

    def at(x: Tensor) -> Tensor:
        return x[:, place].transpose(0, 1)

    used = at(recorded.take())
    own = used if replayed is None else at(replayed.own())
    logits = at(recorded.take("logits")) if with_logits else None
    return Routing(used, own, at(recorded.take("entropy")), recorded.experts, logits)
