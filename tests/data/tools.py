"""What the tests of this folder share: a real tokenizer, and rollouts without a model."""

from __future__ import annotations

from typing import Any

import torch

from gspo.config.rollout import TaskConfig
from gspo.config.training import EvalConfig
from gspo.data.chat_template import Encoder
from gspo.data.prompts import load_prompts
from gspo.data.splits import read_tables
from gspo.types import Prompt, Rollout

TEMPLATE = """{{ bos_token }}{% for m in messages %}
{%- if m['role'] == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}
{{- '[' + m['role'] + ']' + m['content'] }}
{%- if not loop.last or m['role'] != 'assistant' %};{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}[assistant]
{%- if enable_thinking is defined and not enable_thinking %}!{% endif %}
{%- endif %}"""


def characters(template: str | None = None, bos: bool = True, eos_too: bool = False) -> Any:
    """A tokenizer of single characters that puts <s> first, as many models' do."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = ["<unk>", "<s>", "</s>", *(chr(i) for i in range(32, 127)), "\n"]
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    ends = [("<s>", 1), ("</s>", 2)]
    if bos:
        core.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>" if eos_too else "<s> $A", special_tokens=ends
        )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="<unk>", bos_token="<s>" if bos else None, eos_token="</s>"
    )
    tokenizer.chat_template = template
    return tokenizer


def text(tokenizer: Any, ids: tuple[int, ...]) -> str:
    """The ids as text, special tokens included."""
    return "".join(tokenizer.convert_ids_to_tokens(list(ids)))


def rollout(
    completion: str, number: int = 0, task: str = "", prompt: str = "?", opens_thinking: bool = False, **columns: Any
) -> Rollout:
    """A sampled completion to prompt `number`."""
    none = torch.zeros(1)
    asked = Prompt(f"train-{number}", prompt, (1,), columns, task, opens_thinking)
    return Rollout(asked, none.long(), none.bool(), none, none.long(), "eos", completion)


def load(name, system="s", **config):
    """Through the process that makes the items."""
    task = TaskConfig(source=f"reasoning_gym:{name}", config=config, size=16, system=system)
    return load_prompts(task, read_tables(task, EvalConfig(num_prompts=8)), Encoder(characters(TEMPLATE), task))
