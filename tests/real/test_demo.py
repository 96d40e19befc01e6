"""The demo on its real model: fetched, converted, sampled, scored and trained."""

import re
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from gspo.demo import smollm2, stages

SHORT = {"steps": 1, "num_prompts": 4, "num_generations": 2}


def test_the_converted_model_speaks(pretrained):
    tokenizer, model = AutoTokenizer.from_pretrained(pretrained), AutoModelForCausalLM.from_pretrained(pretrained)
    messages = [{"role": "user", "content": "What is the capital of France? Answer in one word."}]
    tokens = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    answer = model.generate(**tokens, max_new_tokens=8, do_sample=False)[0, tokens["input_ids"].shape[1] :]
    assert "Paris" in tokenizer.decode(answer)
    assert model.dtype == torch.float32 and model.num_parameters() == 134_515_008


def test_one_step_of_the_demo(pretrained, tmp_path, monkeypatch, capsys):
    text = (stages.HERE / stages.DEMOS["sums"].file).read_text()
    for name, value in SHORT.items():
        text = re.sub(rf"\b{name} = \d+", f"{name} = {value}", text)
    for name in ("demo", "recipes"):
        (tmp_path / name).mkdir()
    (tmp_path / "recipes" / "smollm2-words.toml").write_text(text)
    monkeypatch.setattr(stages, "HERE", tmp_path / "demo")
    assert stages.run_demo(tmp_path / "run") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"the model is in {smollm2.folder()}" in printed
    assert re.search(r"Held-out accuracy [\d.]+% \(.*\) -> [\d.]+% \(.*\), 4 questions never trained on", printed)
    with pytest.raises(ValueError, match="exists: give another --dir"):
        stages.run_demo(tmp_path / "run")
    shutil.rmtree(tmp_path / "run")
