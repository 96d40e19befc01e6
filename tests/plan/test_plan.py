"""`gspo plan`: what is printed, what it rests on, and what it refuses."""

import json
import re
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from gspo.assembly.host_memory import GIB
from gspo.backends.hf.files import read_config
from gspo.backends.hf.tiny import build_tiny
from gspo.cli.main import main
from gspo.config.files import from_dict
from gspo.plan import cost_model
from gspo.plan.cost_model import Spread
from gspo.plan.meta_sharding import shard_on_meta
from gspo.plan.plan import checked, plan, render
from gspo.plan.work import Lengths
from tests.backends.hf.families import FAMILIES, TOKENIZER
from tests.plan.test_activation_memory import kept_by
from tests.public_models import PAPER, folder_of
from tests.tiny_run import model

ROOT = Path(__file__).parents[2]
LENGTHS = Lengths(100, 156)


def config(path, **changes):
    tables = {
        "model": {"path": str(path)},
        "rollout": {"num_prompts": 16, "num_generations": 4},
        "algorithm": {"mini_batches": 2},
        "train": {"micro_batch_tokens": 1024},
        "scale": {"ranks": 8},
    }
    stages = {"stage": changes.pop("stage")} if "stage" in changes else {}
    return from_dict({name: tables.get(name, {}) | changes.get(name, {}) for name in {*tables, *changes}} | stages)


def shallow(parent, layers=4):
    """A folder with 30B-A3B's config.json but for its layers: each costs a second where a pass is rehearsed."""
    folder = Path(parent) / f"{layers} layers"
    folder.mkdir()
    sizes = PAPER["QWEN3_MOE"] | PAPER["SIZES"]["30B-A3B"] | {"num_hidden_layers": layers}
    (folder / "config.json").write_text(json.dumps(sizes))
    return str(folder)


def figure(text, name):
    found = re.search(rf"^ *{re.escape(name)} +([\d.]+)", text, re.M)
    return float(found[1])


def test_the_command_line_prints_a_prediction(tmp_path, capsys):
    file = tmp_path / "run.toml"
    file.write_text(f'[model]\npath = "{folder_of(tmp_path, "30B-A3B")}"\n[scale]\nranks = 64\nexpert_parallel = 8\n')
    assert main(["plan", str(file), "--memory", "80", "--prompt-tokens", "256"]) == 1
    text = capsys.readouterr().out
    assert text.startswith("All figures are predicted, none is measured.")
    assert figure(text, "= state") == 7.11
    assert figure(text, "weights") + figure(text, "gradients") + figure(text, "AdamW's moments") == pytest.approx(7.11)
    assert "activations (estimate)" in text and "uneven" not in text
    assert figure(text, "a whole copy of the model, to sample with") == 113.74  # 30.53 billion of 4 bytes
    assert "The shards fit 80 GiB, BUT NOT WITH THE WHOLE MODEL" in text and 'set sampler.engine = "vllm"' in text
    served = ["plan", str(file), "--sampler.engine", "vllm"]
    assert main([*served, "--memory", "80", "--prompt-tokens", "256"]) == 0
    text = capsys.readouterr().out
    assert "This fits 80 GiB" in text and "copy" not in text and "sampling (estimate)" not in text
    assert "32 prompts of 256 tokens (option prompt-tokens), 8 completions each, all of 256 (option comp" in text
    assert main([*served, "--memory", "4"]) == 1
    text = capsys.readouterr().out
    assert "STATE ALONE DOES NOT FIT 4 GiB: the smallest number of ranks that holds it is 128," in text
    assert main([*served, "--scale.ranks", "120", "--memory", "4"]) == 1  # as it says


def test_uneven_shards_are_named_with_their_remedy(tmp_path):
    run = config(folder_of(tmp_path, "235B-A22B"), scale={"ranks": 256, "expert_parallel": 8})
    text, fits = render(run, LENGTHS, memory=20)
    assert "Shards are uneven: the fullest rank holds 1.97 times the mean" in text
    assert "try a larger scale.data_parallel_replicas" in text
    assert "STATE ALONE DOES NOT FIT 20 GiB: no number of ranks would do" in text and not fits


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"scale": {"ranks": 2, "expert_parallel": 2}}, r"scale.expert_parallel = 2: .* is no mixture of experts"),
        ({"scale": {"data_parallel_replicas": 3}}, r"scale.data_parallel_replicas = 3: must divide scale.ranks = 8"),
        ({"scale": {"ranks": 1, "expert_parallel": 2}}, r"scale.expert_parallel = 2: must divide the ranks of a copy"),
        ({"scale": {"ranks": 100_000}}, r"scale.ranks = 100000: `gspo plan` lays out at most 4096 ranks: lower it"),
        ({"model": {"path": "./none"}}, r"model.path = './none': no such folder"),
        ({"model": {"path": ""}}, r"model.path is required"),
        ({"model": {"quantize": "nf4"}, "scale": {"ranks": 1}}, r'model.quantize = "nf4": .* train adapters on them'),
        ({"lora": {"rank": 4}}, r"lora.rank = 4 .*: train all weights, or use one rank"),
        ({"optimizer": {"name": "adamw_8bit"}}, r"optimizer.name = 'adamw_8bit' .*: more ranks need less memory each"),
        ({"algorithm": {"name": "ppo"}, "scale": {"ranks": 1}}, r"algorithm.name = 'ppo': .* no critic"),
    ],
)
def test_what_is_refused(tmp_path, changes, said):
    dense = {"model_type": "qwen3", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 64}
    (tmp_path / "config.json").write_text(json.dumps(dense))
    with pytest.raises(ValueError, match=said):
        plan(config(tmp_path, **changes), LENGTHS)


@pytest.mark.parametrize(
    ("option", "value"), [("--memory", "0"), ("--memory", "x"), ("--prompt-tokens", "1.5"), ("--memory", "nan")]
)
def test_options_that_are_no_amounts(tmp_path, capsys, option, value):
    (tmp_path / "run.toml").write_text("")
    assert main(["plan", str(tmp_path / "run.toml"), option, value]) == 2
    assert f"{option}: '{value}': must be" in capsys.readouterr().err


def each(made):
    """Bytes of each number that a rank holds."""
    return {name: size / made.sharding.held for name, size in made.memory.standing.items()}


def test_settings_change_what_they_should(tmp_path):
    folder = folder_of(tmp_path, "30B-A3B")
    plain = plan(config(folder), LENGTHS)
    assert each(plain) == {"weights": 4, "gradients": 4, "AdamW's moments": 8}
    bare = plan(config(folder, train={"gradient_checkpointing": True}), LENGTHS)
    assert each(bare) == each(plain) and list(bare.memory.passing) == ["gathered layers", "activations (estimate)"]
    assert bare.memory.passing["activations (estimate)"] < plain.memory.passing["activations (estimate)"] / 10
    half = plan(config(folder, model={"path": folder, "dtype": "bfloat16"}, algorithm={"beta": 0.1}), LENGTHS)
    assert each(half) == {"weights": 2, "gradients": 2, "AdamW's moments": 4, "reference model": 2}
    wide = plan(config(folder, model={"path": folder, "autocast": "none"}), LENGTHS)
    gathers = [[row.training for row in each.sent if "all-gather" in row.what] for each in (plain, wide)]
    assert 0.5 < sum(gathers[0]) / sum(gathers[1]) < 0.52  # all but embeddings, head, norms and routers
    assert sum(gathers[1]) / 2 == pytest.approx(sum(row.training for row in wide.sent if "reduce" in row.what), rel=0.02)
    assert plain.memory.passing["gathered layers"] < wide.memory.passing["gathered layers"]
    said = "gathered in it, gradients are added up in float32"
    less, alone = shallow(tmp_path), {"scale": {"ranks": 1}}
    texts = [render(config(less, **more), LENGTHS, None)[0] for more in ({}, alone)]
    assert [said in text for text in texts] == [True, False]
    served = plan(config(folder, sampler={"engine": "vllm"}), LENGTHS)
    assert served.sent[-1].what == "weights for the engine"
    one = plan(config(less, **alone), LENGTHS)
    layers, ends = 4 / 48 * 29.91, 2 * 0.31117  # billions, of 4 layers among 48, and of embeddings and head
    assert one.memory.passing["copies of weights for products"] / 1e9 == pytest.approx(2 * layers, rel=1e-3)
    assert one.sent == [] and one.memory.state == pytest.approx((layers + ends) * 16e9, rel=1e-3)


@pytest.mark.parametrize(("ranks", "dtype", "whole"), [(8, "float32", 4), (8, "bfloat16", 2), (1, "float32", 0)])
def test_the_copies_of_the_embedded_sampler_are_counted(tmp_path, ranks, dtype, whole):
    folder = shallow(tmp_path)
    tables = {"scale": {"ranks": ranks}, "model": {"path": folder, "dtype": dtype}}
    made = plan(config(folder, **tables), LENGTHS)
    assert made.memory.copied == whole * sum(weight.size for weight in made.sharding.weights)
    alone = made.memory.state - made.memory.standing["gradients"]  # while it samples
    assert made.memory.fullest == made.memory.copied + max(made.memory.together, alone + made.memory.sampling)
    served = plan(config(folder, sampler={"engine": "vllm"}, **tables), LENGTHS)
    assert served.memory.copied == served.memory.sampling == 0
    assert served.memory.fullest == served.memory.together == made.memory.together


def test_what_sampling_takes_and_whether_it_fits(tmp_path):
    wide = {"model": {"path": folder_of(tmp_path, "30B-A3B"), "autocast": "none"}}
    few = {"sampler": {"batch_size": 32}, "train": {"gradient_checkpointing": True, "micro_batch_tokens": 1024}}
    made = plan(config("", **wide, **few), LENGTHS)
    cache = 2 * 48 * 512 * 4  # bytes of a token's keys and values
    assert made.memory.sampling == 32 * (256 * cache + 3 * 4 * 151936)
    assert plan(config("", **wide, **few), Lengths(100_000, 1)).memory.sampling > 131072 * cache  # read at once
    narrow = plan(config(wide["model"]["path"], **few), LENGTHS)
    experts = 2 * 28.99e9
    assert narrow.memory.sampling == pytest.approx(made.memory.sampling - 32 * 256 * cache / 2 + experts, rel=1e-3)

    run = config("", **wide, **few, rollout={"max_completion_length": 20_000})
    made = plan(run, Lengths(100, 20_000))
    standing, passing = (made.memory.state + made.memory.copied) / GIB, sum(made.memory.passing.values()) / GIB
    assert made.memory.sampling / GIB > passing + 1
    rooms = [standing - 1, standing + passing - 1, standing + passing + 0.5, made.memory.fullest / GIB + 1]
    said = ["BUT NOT WITH THE WHOLE MODEL", "not what a pass takes on top", "sampling does not:", "This fits"]
    for room, text in zip(rooms, said):
        shown, fits = render(run, Lengths(100, 20_000), memory=room)
        assert text in shown and fits == (room > standing), (room, shown)


def test_an_evaluation_may_take_more_than_a_step(tmp_path):
    folder = shallow(tmp_path)
    tables = {"model": {"path": folder, "autocast": "none"}, "rollout": {"max_completion_length": 246}}

    def sampling(**more):
        return plan(config(folder, **tables, **more), Lengths(10)).memory.sampling

    def taken(tokens):
        return tokens * 2 * 4 * 512 * 4 + 3 * 4 * 151936  # keys and values in 4 layers, logits

    held_out = {"every": 5, "num_prompts": 100, "num_generations": 2, "max_completion_length": 990}
    assert sampling() == sampling(eval={"every": 5, "num_prompts": 60}) == 64 * taken(256)
    assert sampling(eval=held_out) == 200 * taken(1000) and sampling(eval=held_out | {"every": 0}) == 64 * taken(256)
    assert sampling(eval=held_out | {"max_completion_length": 10**6}) == 200 * taken(32_768)  # no more can be read
    assert sampling(eval=held_out, sampler={"batch_size": 20}) == 20 * taken(1000)
    assert sampling(eval=held_out, sampler={"engine": "vllm"}) == 0
    stage = [{"at": 5, "max_completion_length": 90, "num_generations": 16}]
    text, _ = render(config(folder, **tables, eval={"every": 5}, stage=stage), Lengths(10), None)
    assert "16 completions each, all of 90" in text
    assert "evaluations: 256 completions at once, all of 246 (option completion-tokens)" in text


def test_layers_that_stay_wide_have_copies_on_ranks_too(tmp_path):
    sizes = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 4, "vocab_size": 300}  # 3 of linear attention
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3_5_text", **sizes}))
    made = plan(config(tmp_path, scale={"ranks": 2}), LENGTHS)
    with torch.device("meta"):
        layers = AutoModelForCausalLM.from_config(read_config(config(tmp_path).model)).model.layers
    wide = sum(p.numel() for layer in layers[:3] for p in layer.parameters())
    assert made.memory.passing["bfloat16 copies of weights"] == 2 * wide
    saved = plan(config(tmp_path, scale={"ranks": 2}, train={"gradient_checkpointing": True}), LENGTHS)
    whole = {"path": str(tmp_path), "dtype": "bfloat16"}
    half = plan(config(tmp_path, scale={"ranks": 2}, model=whole), LENGTHS)
    assert not any("copies" in name for each in (saved, half) for name in each.memory.passing)


DENSE = {"model_type": "qwen3", "hidden_size": 64, "intermediate_size": 160}


@pytest.mark.parametrize(
    "sizes",
    [{}, {"hidden": 64, "expert_width": 16, "top_k": 1}, {"heads": 8, "kv_heads": 8, "hidden": 64, "top_k": 4}, DENSE],
    ids=["mixture", "narrow experts", "many experts", "dense"],
)
def test_the_estimate_of_activations_is_near_what_a_pass_saves(tmp_path, sizes):
    wrapped = model(**{"vocab_size": 40, "tie_word_embeddings": False, "layers": 6} | sizes)
    wrapped.save(tmp_path)
    found = kept_by(wrapped, 4, 64)
    shape = shard_on_meta(checked(config(tmp_path)).model, Spread(1)).shape
    estimate = cost_model.activations(shape, 4 * 64, 4, False)
    assert 0.7 < estimate / found < 1.4, f"{estimate:.0f} for {found}"


@pytest.mark.slow
def test_the_table_of_the_documentation_is_what_is_predicted():
    made = PAPER
    old = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    assert made["page"](old) == old
    state = {tuple(row.split(" | ")[:4]): row.split(" | ")[4] for row in made["table"]().splitlines()[2:]}
    assert state["| 30B-A3B", "8", "8", "1"] == "56.9" and state["| 235B-A22B", "512", "8", "4"] == "27.4"


def test_a_row_of_what_fits_is_what_is_predicted(tmp_path):
    row = next(line for line in (ROOT / "docs" / "memory.md").read_text(encoding="utf-8").splitlines() if "0.6B" in line)
    (tmp_path / "config.json").write_text(json.dumps(PAPER["QWEN3"] | dict(zip(PAPER["NAMES"], PAPER["DENSE"]["0.6B"]))))
    changes = [*PAPER["CHOICES"].values()]
    cells = [PAPER["need"](str(tmp_path), changes[i], mixture=False) for i in (1, -1)]
    assert row.startswith("| 0.6B |") and [row.split(" | ")[i].rstrip(" |") for i in (2, -1)] == cells


def test_the_stage_that_samples_most_is_counted_and_each_must_fit(tmp_path):
    path = folder_of(tmp_path, "30B-A3B")
    stages = [{"at": 5, "max_completion_length": 512}, {"at": 9, "num_generations": 2, "max_completion_length": 600}]
    text, _ = render(config(path, stage=stages), Lengths(100), None)
    assert "4 completions each, all of 512 (option completion-tokens)" in text
    assert "2 [[stage]]: these are the figures of the one that samples most in a step" in text
    assert "[[stage]]" not in render(config(path), Lengths(100), None)[0]
    with pytest.raises(ValueError, match=r"stage\[0\]\.max_completion_length = 10000000 leaves no room"):
        render(config(path, stage=[{"at": 5, "max_completion_length": 10**7}]), Lengths(100), None)


def test_an_adapters_folder_is_counted_as_the_model_below(tmp_path):
    below, adapter = shallow(tmp_path), tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(below)}))
    alone = {"scale": {"ranks": 1}}
    one, other = (plan(config(path, **alone), LENGTHS) for path in (below, adapter))
    assert one.memory == other.memory and one.sharding == other.sharding
    (adapter / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(tmp_path / "gone")}))
    with pytest.raises(ValueError, match=r"model.path = '.*adapter': the base model of this adapter: .*gone'"):
        plan(config(adapter, **alone), LENGTHS)


@pytest.mark.parametrize("family", ["mamba", "gpt2", "bloom"])
def test_families_of_other_kinds_have_a_plan(tmp_path, family):
    build_tiny(FAMILIES[family], TOKENIZER).save(tmp_path)
    made = plan(config(tmp_path, scale={"ranks": 1}), Lengths(10, 6))  # mamba reads token by token
    assert made.memory.fullest > made.memory.state > 0
    assert (made.sharding.shape.queries == 0) == (family == "mamba")
