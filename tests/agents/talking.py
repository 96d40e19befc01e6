"""Tokenizers with chat templates, and a completer that says anything, for tests of conversations."""

import random
from concurrent.futures import Future
from functools import cache

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from gspo.agents.chat import Chat
from gspo.config.rollout import TaskConfig
from gspo.data.chat_template import Encoder
from gspo.types import Rollout, Sampling

CHATML = """{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}Tools: {% for tool in tools %}{{ tool | tojson }}
{% endfor %}Call one as <tool_call>{"name": ..., "arguments": ...}</tool_call>.<|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}{%- set last = namespace(user=-1) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
{%- if message.role == 'assistant' %}
{%- set words = message.content %}
{%- if loop.index0 < last.user and '</think>' in words %}
{%- set words = words.split('</think>')[-1].lstrip('\\n') %}
{%- endif %}
{{- '<|im_start|>assistant\n' + words }}
{%- for call in message.tool_calls or [] %}
{%- set said = '{"name": "' + call.function.name + '", "arguments": ' + (call.function.arguments | tojson) + '}' %}
{{- '\n<tool_call>\n' + said + '\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- elif message.role == 'tool' %}
{{- '<|im_start|>user\n<tool_response>\n' + message.content + '\n</tool_response><|im_end|>\n' }}
{%- elif message.role == 'user' %}
{{- '<|im_start|>user\n' + message.content + '<|im_end|>\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""

HEADERS = """{{- '<|begin|>' }}
{%- for tool in tools or [] %}{{ tool | tojson }}{% endfor %}
{%- for message in messages %}
{{- '<|header|>' + message.role + '<|/header|>\n\n' + message.content | trim }}
{%- for call in message.tool_calls or [] %}{{ '[TOOL_CALLS]' + ([call.function] | tojson) }}{% endfor %}
{{- '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|header|>assistant<|/header|>\n\n' }}{% endif %}"""

TEMPLATES = {"chatml": CHATML, "headers": HEADERS}
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|begin|>", "<|header|>", "<|/header|>"]
WORDS = (
    "the tool says that 42 apples and 7 pears are in the box naïve 東京 😀 <think> </think> name arguments lookup value key"
)
TOOLS = [{"type": "function", "function": {"name": "lookup", "description": "d", "parameters": {"type": "object"}}}]


@cache
def tokenizer(template):
    """Byte-level BPE: every text has tokens, and most have several tokenisations."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator([WORDS] * 4, trainer)
    wrapped = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", additional_special_tokens=SPECIAL)
    wrapped.chat_template = TEMPLATES[template]
    return wrapped


class Job:
    def __init__(self, rollout):
        self.future = Future()
        self.future.set_result(rollout)

    def cancel(self):
        pass


class RandomCompleter:
    """Says anything: random tokens, special ones among them, and sensible texts in odd tokens. `heard`: what it read and
    sampled, by the prompt's id.
    """

    version = 3

    def __init__(self, template, seed):
        self.tokenizer, self.random, self.heard = tokenizer(template), random.Random(seed), {}

    def says(self):
        words = self.random.choices(WORDS.split(), k=self.random.randint(1, 6))
        return self.random.choice(
            [
                " ".join(words), "\n\n " + " ".join(words) + " \n", "<think>" + words[0] + "</think>\n\n" + " ".join(words),
                '<tool_call>\n{"name": "lookup", "arguments": {"key":"' + words[0] + '"}}\n</tool_call>',
                'so <tool_call>{"arguments": {"b": 1.0, "a": "é"}, "name": "lookup"}</tool_call>',
                "<tool_call>{oops</tool_call>",
                '[TOOL_CALLS][{"name": "lookup", "arguments": {"k": 2}}]', "half of 😀", "",
            ]
        )  # fmt: skip

    def tokens(self):
        if self.random.random() < 0.25:
            return [self.random.randrange(len(self.tokenizer)) for _ in range(self.random.randint(1, 9))]
        text = self.says()
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        if self.random.random() < 0.5:  # other tokens for the same text
            ids = [t for c in text for t in self.tokenizer(c, add_special_tokens=False)["input_ids"]]
        return ids[:-1] if text.endswith("😀") else ids

    def begin(self, so_far, seed, sampling):
        prompt, eos = so_far.prompt, self.tokenizer.eos_token_id
        ids = [t for t in self.tokens() if t != eos]
        ended = not ids or self.random.random() < 0.9
        ids = [*ids, eos] if ended else ids
        start, size = len(prompt.tokens), len(prompt.tokens) + len(ids)
        sampled = torch.arange(size) >= start
        logp = torch.where(sampled, -torch.tensor([self.random.random() for _ in range(size)]), 0.0)
        rollout = Rollout(
            prompt, torch.tensor([*prompt.tokens, *ids]), sampled, logp, torch.where(sampled, self.version, -1),
            "eos" if ended else "length",
        )  # fmt: skip
        self.heard.setdefault(prompt.id, []).append(rollout)
        return Job(rollout)


def read(talk, call):
    """The text that the policy read for a turn."""
    return talk.decode(list(call.rollout.prompt.tokens))


def chat(template="chatml", seed=0, completer=None):
    """A Chat whose turns are a RandomCompleter's."""
    encoder = Encoder(tokenizer(template), TaskConfig())
    stop_ids = (encoder.tokenizer.eos_token_id,)
    return Chat(completer or RandomCompleter(template, seed), encoder, Sampling(50, stop_ids=stop_ids), 4096)
