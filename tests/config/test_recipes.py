"""The recipes by name: they resolve, and the GSM8K recipe reads and scores as it says."""

import dataclasses
import re
import shlex
import warnings

import pytest
import torch

from gspo.backends.hf.tiny import longest_match_tokenizer
from gspo.cli.arguments import take_fields
from gspo.cli.commands import parser
from gspo.config.algorithm import resolved
from gspo.config.commands import check_command
from gspo.config.files import load, read_toml, to_dict
from gspo.config.recipes import file_of, recipes
from gspo.config.schema import Config
from gspo.config.training import EvalConfig
from gspo.config.unused import check_unused
from gspo.data.chat_template import Encoder
from gspo.data.prompts import load_prompts
from gspo.data.splits import read_tables
from gspo.rewards.scorer import Rewards
from gspo.types import Rollout

RECIPES = recipes()
STUDIES = {"smollm2-grpo-gspo"}
FILLED = [f"algorithm.{name}" for name in ("epsilon", "epsilon_high", "mini_batches", "scale_rewards", "critic")]
GSM8K, PAPER, ADAPTERS = (f"recipe:{name}" for name in ("qwen3-0.6b-gsm8k", "qwen3-30b-a3b", "qwen3-4b-lora"))
ROWS = [
    {
        "question": f"A box holds {n} eggs. How many eggs do 1000 boxes hold?",
        "answer": f"Each box holds {n}.\n1000 * {n} = <<1000*{n}={1000 * n}>>{1000 * n}\n#### {n},000",
    }
    for n in range(10, 30)
]
# The parts of Qwen3's template that the recipe needs: turns, and an empty thought where thinking is off.
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %}"
)


@pytest.mark.parametrize("name", sorted(RECIPES.keys() - STUDIES))
def test_a_recipe_resolves(name):
    path = f"recipe:{name}"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        config, odd = resolved(load(path))
    assert odd == []
    assert to_dict(config) == to_dict(load(path, {key: getattr(config.algorithm, key[10:]) for key in FILLED}))
    imitates = name.endswith(("-cold-start", "-sft"))
    check_unused(config, "sft" if imitates else "eval" if name == "smollm2-suite" else "train", filled=resolved(Config())[0])
    assert config.log.dir == ("auto" if name == "smollm2-suite" else f"runs/{name}")
    if path in (GSM8K, PAPER):
        check_command(config, "train")
        algorithm = config.algorithm  # the paper's
        assert (algorithm.name, algorithm.epsilon, algorithm.epsilon_high) == ("gspo", 3e-4, 4e-4)
        assert (algorithm.mini_batches, algorithm.epochs, algorithm.beta) == (4, 1, 0.0)


def test_what_a_header_says_to_type_is_accepted():
    """Its options exist, and go together with the recipe."""
    typed = [
        shlex.split(line.lstrip("# "))[1:]
        for path in RECIPES.values()
        for line in path.read_text().replace("\\\n#", " ").splitlines()
        if line.startswith("#     gspo ")
    ]
    assert {GSM8K, PAPER, ADAPTERS} == {words[1] for words in typed}
    for words in typed:
        plain, fields = take_fields(words)
        arguments = parser().parse_args(plain)
        config = load(arguments.config, fields)
        if arguments.command != "plan":
            check_command(config, arguments.command)


def test_each_recipe_says_what_it_is_and_whether_it_has_run():
    for name, path in RECIPES.items():
        what, ran = path.read_text().splitlines()[:2]
        assert re.fullmatch(r"# [A-Z].*[.?]( .*\.)?", what) and len(what) <= 125
        assert ran == ("# run here" if name.startswith("smollm2-") else "# not run")
        assert read_toml(f"recipe:{name}", "recipe") == read_toml(path, "recipe") and file_of(str(path)) == str(path)


def test_an_unknown_recipe_is_answered_with_the_nearest():
    with pytest.raises(ValueError, match=r"^recipe:smollm2-word: no such recipe, did you mean smollm2-words[?]; `gspo r"):
        load("recipe:smollm2-word")
    with pytest.raises(ValueError, match=r"^recipe:[.]{2}/demo/train: no such recipe; `gspo recipes` lists them$"):
        file_of("recipe:../demo/train")


def test_the_gsm8k_prompt_and_its_reward():
    config = load(GSM8K)
    letters = {c for row in ROWS for c in row["question"]} | set(config.task.system) | set("systemuserant\n\\{}.#")
    tokenizer = longest_match_tokenizer([*sorted(letters), "<|im_start|>", "<|im_end|>", "<think>", "</think>"])
    tokenizer.chat_template = TEMPLATE
    task = dataclasses.replace(config.task, eval_split=None)
    (prompt, *_), _ = load_prompts(task, read_tables(task, EvalConfig(), ROWS), Encoder(tokenizer, task))
    assert tokenizer.decode(list(prompt.tokens)) == (
        "<|im_start|>system\nReason step by step, and put your final answer within \\boxed{}.<|im_end|>\n"
        f"<|im_start|>user\n{ROWS[0]['question']}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    completions = {
        "1000 * 10 = 10000, so the answer is \\boxed{10,000}.": 1.0,
        "So the answer is **10,000 eggs**": 1.0,
        "\\boxed{10000} or \\boxed{11000}": 0.0,
        "<think>\\boxed{10000}": 0.0,
    }
    none = torch.zeros(0)
    rollouts = [Rollout(prompt, none, none, none, none, "eos", text) for text in completions]
    with Rewards(config.reward, config.task) as rewards:
        assert [rollout.reward for rollout in rewards.score(rollouts)] == list(completions.values())
