"""An in-process transformers sequence classifier: one score per text. Padding does not change scores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

from gspo.config.import_function import pick_device
from gspo.config.rewards import RewardModelConfig
from gspo.data.chat_template import fix_date
from gspo.rewards.transcripts import Messages, text_of, words_of
from gspo.runs.machine import warn_if_slow

disable_progress_bar()  # for loading weights: the run shows its own
WHERE = "reward_model.path"


class Classifier:
    """Scores conversations by the logit or probability of one label. `load` reads the weights."""

    def __init__(self, cfg: RewardModelConfig, date: str | None = None) -> None:
        """Reads all but the weights. date: The day that its chat template may write; None: today. Raises ValueError."""
        self.cfg, self.date = cfg, date
        self.device = pick_device(cfg.device, "reward_model.device")
        self.model: Any = None
        self.options: dict[str, Any] = {"revision": cfg.revision, "trust_remote_code": cfg.trust_remote_code}
        self.config = self._read(AutoConfig)
        self.tokenizer = self._read(AutoTokenizer)
        self.label = label_of(self.config, cfg)
        longest = getattr(self.config.get_text_config(), "max_position_embeddings", None)
        self.longest = min(x for x in (cfg.max_length, longest, 1 << 30) if x is not None)
        self.several = self.config.num_labels > 1 and self.config.problem_type != "multi_label_classification"

    def _read(self, kind: Any, **options: Any) -> Any:
        try:
            return kind.from_pretrained(self.cfg.path, **self.options, **options)
        except Exception as error:  # transformers raises many kinds here
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            if "trust_remote_code" in str(error):
                first = "it brings its own Python code. Read it; to run it set reward_model.trust_remote_code = true"
            elif "safetensors" in str(error) and not self.cfg.allow_pickle:
                first += " If it has pickled weights that you trust, set reward_model.allow_pickle = true"
            folder = Path(self.cfg.path).is_dir()
            hint = "" if folder else "neither a folder here nor a model of the Hugging Face hub: "
            raise ValueError(f"{WHERE} = {self.cfg.path!r}: {hint}{first}") from error

    def load(self) -> None:
        """Reads the weights. Raises ValueError if some are missing, since the score would be random."""
        if self.model is not None:
            return
        cfg = self.cfg
        warn_if_slow(f'reward_model.dtype = "{cfg.dtype}"', '"float32"', getattr(torch, cfg.dtype), self.device)
        options = {"use_safetensors": None if cfg.allow_pickle else True, "dtype": getattr(torch, cfg.dtype)}
        with torch.random.fork_rng(devices=[]):  # missing weights would be drawn from the global generator
            model, loading_info = self._read(AutoModelForSequenceClassification, output_loading_info=True, **options)
        if lacking := sorted(loading_info["missing_keys"]):
            raise ValueError(
                f"{WHERE} = {cfg.path!r}: {', '.join(lacking[:3])} is not among its weights and would be random. It is no "
                f"sequence classifier (config.json: {', '.join(self.config.architectures or ['?'])}); give one with a head"
            )
        for name, module in model.named_modules():  # RoBERTa numbers its positions from padding_idx + 1
            if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
                self.longest = min(self.longest, module.num_embeddings - module.padding_idx - 1)
        self.model = model.to(self.device).eval().requires_grad_(False)
        self.pad = model.config.get_text_config().pad_token_id

    def encode(self, messages: Messages) -> tuple[list[int], list[int]] | None:
        """Token ids and token types of a conversation that ends with the completion; None if it is too long. Without a chat
        template, prompt and completion are a pair of texts.
        """
        special = not self.tokenizer.chat_template
        if special:
            encoded = self.tokenizer(text_of(messages[:-1]), words_of(messages[-1]))
        else:
            fix_date(self.tokenizer, self.date)
            text = self.tokenizer.apply_chat_template(messages, tokenize=False)
            encoded = self.tokenizer(text, add_special_tokens=False)
        ids, extra = encoded["input_ids"], len(encoded["input_ids"]) - self.longest
        types = encoded.get("token_type_ids") or [0] * len(ids)
        if extra <= 0:
            return ids, types
        if self.cfg.too_long == "none":
            return None
        if self.cfg.too_long == "right":
            return ids[: self.longest], types[: self.longest]
        first = int(special and ids[0] in self.tokenizer.all_special_ids)  # keep [CLS], which such a classifier reads
        return ids[:first] + ids[first + extra :], types[:first] + types[first + extra :]

    @torch.inference_mode()
    def scores(self, rows: Sequence[tuple[list[int], list[int]]]) -> list[float]:
        """The score of each row of token ids and types, batched by similar length."""
        scores: dict[int, float] = {}
        order = sorted(range(len(rows)), key=lambda i: len(rows[i][0]))
        for start in range(0, len(order), self.cfg.batch_size):
            batch = order[start : start + self.cfg.batch_size]
            scores |= zip(batch, self._batch([rows[i] for i in batch]).tolist())
        return [scores[i] for i in range(len(rows))]

    def _batch(self, rows: Sequence[tuple[list[int], list[int]]]) -> Tensor:
        """Scores [B] of a batch, padded on the right so that no earlier token sees the padding."""
        pad = self.pad
        if pad is None:  # the score is read at the last token that differs from the padding: choose one that ends no row
            ends = {ids[-1] for ids, _ in rows}
            pad = next(token for token in range(len(ends) + 1) if token not in ends)
        self.model.config.get_text_config().pad_token_id = pad
        ids = pad_sequence([torch.tensor(ids) for ids, _ in rows], True, pad)
        mask = pad_sequence([torch.ones(len(ids), dtype=torch.int64) for ids, _ in rows], True, 0)
        inputs = {"input_ids": ids, "attention_mask": mask}
        if "token_type_ids" in self.tokenizer.model_input_names:
            inputs["token_type_ids"] = pad_sequence([torch.tensor(types) for _, types in rows], True, 0)
        inputs = {name: tensor.to(self.device) for name, tensor in inputs.items()}
        logits = self.model(**inputs).logits.float()  # [B, labels]
        if self.cfg.output == "logit":
            return logits[:, self.label]
        return (logits.softmax(-1) if self.several else logits.sigmoid())[:, self.label]


def label_of(config: Any, cfg: RewardModelConfig) -> int:
    """Index of the label whose score is used. Raises ValueError if it is ambiguous or unknown."""
    names = {int(number): str(name) for number, name in config.id2label.items()}
    if cfg.label is None:
        if len(names) == 1:
            return 0
        raise ValueError(
            f"{WHERE} = {cfg.path!r}: it has {len(names)} labels ({', '.join(names.values())}): say by reward_model.label "
            "whose score is the reward; if it is no classifier but a language model, give a trained reward model"
        )
    for number, name in names.items():
        if cfg.label in (name, str(number)):
            return number
    raise ValueError(f"reward_model.label = {cfg.label!r}: the classifier's labels are {', '.join(names.values())}")
