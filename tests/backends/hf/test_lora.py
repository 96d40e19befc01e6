"""Adapters: what they are, what is trained and saved, and what is refused."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import gspo
from gspo.backends.hf.lora import Unadapted, adapted, read_model
from gspo.cli.main import main
from gspo.config.files import load
from gspo.config.policy import LoraConfig, ModelConfig
from tests.backends.hf.adapters import IDS, logits, trained, with_adapters
from tests.logged import logs
from tests.tiny_run import ROWS, likes_a, model, settings


def on_layers(base=None, rank=4, **options):
    return with_adapters(base or model(), rank, **{"targets": ["all-linear"]} | options)


def test_new_adapters_change_nothing_and_alone_are_trained():
    with logs(match=r"its weights are in no folder, so its adapter cannot name"):
        adapters = adapted(model(), LoraConfig(rank=4))
    assert logits(adapters).equal(logits(model()))
    assert trained(adapters) and all("lora_" in name for name in trained(adapters))
    assert not any("lm_head" in name or "gate" in name or "experts" in name for name in trained(adapters))


def test_switched_off_it_is_the_model_below_and_shares_its_memory():
    before = logits(model())
    adapters = on_layers()
    off, now = Unadapted.of(adapters), logits(adapters)
    assert off.model is adapters.model
    assert logits(off).equal(before) and not now.equal(before) and logits(adapters).equal(now)


def test_an_adapter_is_saved_alone_and_loads_again(tmp_path):
    adapters = on_layers()
    adapters.save(tmp_path / "adapter")
    names = {path.name for path in (tmp_path / "adapter").iterdir()}
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= names
    assert not {"model.safetensors", "config.json"} & names
    again = adapted(model(), LoraConfig(rank=4))
    again.load(tmp_path / "adapter")
    assert logits(again).equal(logits(adapters))
    with pytest.raises(ValueError, match="of other layers or targets"):
        adapted(model(), LoraConfig(rank=4, targets=["q_proj"])).load(tmp_path / "adapter")


def test_a_saved_adapter_is_a_model_path_also_below_another_and_from_anywhere(tmp_path, monkeypatch):
    """AutoModelForCausalLM with peft at hand reads it, as users do, though the base was named by a path from here."""
    model().save(tmp_path / "base")
    monkeypatch.chdir(tmp_path)
    path, made = "base", {}
    for name in ("first", "second"):  # an adapter on an adapter stands on both
        made[name] = on_layers(read_model(ModelConfig(path)))
        made[name].save(name)
        path = str(tmp_path / name)
        assert torch.allclose(logits(read_model(ModelConfig(path))), logits(made[name]), atol=1e-5)
        assert all(p.requires_grad for p in read_model(ModelConfig(path)).model.parameters())  # to be trained as a whole
    monkeypatch.chdir("/")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "first")
    assert torch.allclose(loaded(IDS).logits, logits(made["first"]), atol=1e-5)
    assert AutoTokenizer.from_pretrained(tmp_path / "first").get_vocab() == made["first"].tokenizer.get_vocab()
    file = tmp_path / "first" / "adapter_config.json"
    for base, message in ((None, "names no base model"), ("/gone", "the base model of this adapter.*no such folder")):
        file.write_text(json.dumps(json.loads(file.read_text()) | {"base_model_name_or_path": base}))
        with pytest.raises(ValueError, match=message):
            read_model(ModelConfig(str(tmp_path / "first")))


def test_a_run_learns_and_its_adapter_is_evaluated(tmp_path, capsys):
    base = model()
    g = torch.Generator().manual_seed(0)
    with torch.no_grad():  # a new model's attention hardly reaches the logits, and the adapters are there
        for p in base.model.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=g))
    base.save(tmp_path / "base")
    config = settings(
        tmp_path / "run", lora={"rank": 8}, optimizer={"lr": 1e-2}, train={"steps": 12}, rollout={"num_generations": 8},
        algorithm={"epsilon": 3e-2, "epsilon_high": 4e-2},
    )  # fmt: skip
    result = gspo.train(str(tmp_path / "base"), ROWS, likes_a, config=config)
    steps = [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]
    assert steps[-1]["reward"] > steps[1]["reward"] + 0.1
    last = sorted((result.folder / "checkpoints").iterdir())[-1] / "model"
    assert (last / "adapter_model.safetensors").is_file() and not (last / "model.safetensors").exists()
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in ROWS))
    (tmp_path / "eval.toml").write_text(
        f'[model]\npath = "{result.folder / "model"}"\n[task]\nsource = "{tmp_path / "rows.jsonl"}"\n'
        '[reward]\nfunctions = ["exact"]\n[rollout]\nmax_completion_length = 4\n[lora]\nrank = 8\n'  # as the run's own file
    )
    for path in (result.folder / "model", last):
        assert main(["eval", str(tmp_path / "eval.toml"), f"--model.path={path}"]) == 0
    capsys.readouterr()
    assert main(["eval", str(tmp_path / "eval.toml"), "--lora.rank=4"]) == 2
    assert "--lora.rank: has no effect on `gspo eval`" in capsys.readouterr().err


def test_an_adapter_on_a_trained_model_names_the_folder_of_the_trained_weights(tmp_path):
    model().save(tmp_path / "base")
    rows = [{"prompt": "1+1=", "completion": "2"}]
    small = {"train": {"steps": 1}, "eval": {"every": 0}, "rollout": {"num_prompts": 4, "num_generations": 2}}
    options = {"train": {"steps": 1, "batch_size": 1}, "optimizer": {"lr": 0.1}, "log": {"dir": str(tmp_path / "sft")}}
    first = gspo.sft(str(tmp_path / "base"), rows, config=options)
    again = gspo.sft(first.model, rows, tokenizer=first.tokenizer, config=options, resume=True)  # of "base", as it began
    assert again.finished
    config = settings(tmp_path / "run", lora={"rank": 4}, **small)
    result = gspo.train(first.model, ROWS, likes_a, tokenizer=first.tokenizer, config=config)
    assert load(result.folder / "config.toml").model.path == str(tmp_path / "sft" / "model")
    merged = read_model(ModelConfig(str(result.folder / "model")))
    assert torch.allclose(logits(merged), result.model(IDS).logits, atol=1e-4)


def test_bad_input():
    with pytest.raises(ValueError, match=r"lora.targets = \['no_such'\].*[^.]\. This model has .*q_proj"):
        adapted(model(), LoraConfig(rank=4, targets=["no_such"]))
    with pytest.raises(ValueError, match=r"the head takes no adapter"):
        adapted(model(tie_word_embeddings=False), LoraConfig(rank=4, targets=["q_proj", "lm_head"]))
    with pytest.raises(ValueError, match=r"has adapters already: give a newly loaded one"):
        adapted(on_layers(), LoraConfig(rank=4))
