"""GGUF files: what is converted is the model that was written, and whatever cannot be read is refused."""

import os
import signal
import subprocess
import sys

import gguf
import pytest
import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoModelForCausalLM, LlamaConfig

from gspo.backends.hf.files import read_outline
from gspo.config.policy import ModelConfig
from tests.backends.hf.folders import load
from tests.logged import logs

TOKENS = [*sorted(ByteLevel.alphabet()), "ab", "<|endoftext|>"]
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
KIND = gguf.GGMLQuantizationType


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def llama():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(TOKENS), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, tie_word_embeddings=False, rope_theta=1e4,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config).eval()


@pytest.fixture(scope="module")
def model():
    return llama()


def write(path, model, kind=KIND.F32, architecture="llama", leave_out=(), template=TEMPLATE):
    config, name_of = model.config, gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, model.config.num_hidden_layers)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(1e4)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([gguf.TokenType.NORMAL] * (len(TOKENS) - 1) + [gguf.TokenType.CONTROL])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(len(TOKENS) - 1)
    if template:
        writer.add_chat_template(template)
    for key, weight in model.state_dict().items():
        name = name_of.get_name(key, try_suffixes=(".weight",))
        if name not in leave_out:
            array = weight.numpy()
            for part, heads in (("q_proj", config.num_attention_heads), ("k_proj", config.num_key_value_heads)):
                if part in key:  # rotary pairs stand side by side in a GGUF, half a head apart in transformers
                    array = array.reshape(heads, 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
            used = kind if weight.ndim == 2 else KIND.F32
            writer.add_tensor(name, gguf.quants.quantize(array, used), raw_dtype=used)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("as_folder", [False, True])
def test_the_model_that_was_written_is_read_and_converted_once(model, tmp_path, as_folder):
    file = write(tmp_path / "tiny.gguf", model)
    path = tmp_path if as_folder else file
    with logs(r"converting tiny.gguf \(100% F32\) to float32 weights in .*, once", level=20):
        made = load(path)
    state = made.model.state_dict()
    assert all(torch.equal(weight, state[name]) for name, weight in model.state_dict().items())
    assert made.tokenizer.decode(made.tokenizer("2 + 2 ab").input_ids) == "2 + 2 ab"
    assert made.tokenizer.chat_template == TEMPLATE and made.stop_ids == (len(TOKENS) - 1,)
    folder = made.model.name_or_path
    begin = os.stat(folder).st_mtime_ns
    assert load(path).model.name_or_path == folder and os.stat(folder).st_mtime_ns == begin
    write(file, model, KIND.F16, template=None)  # another file under the same name
    again = load(path)
    assert again.model.name_or_path != folder and again.tokenizer.chat_template is None


def test_quantized_weights_are_those_of_the_file_and_said_to_be_rounded(model, tmp_path):
    file = write(tmp_path / "tiny.gguf", model, KIND.Q8_0)
    with logs(r"Q8_0.*: rounded, so less exact", level=20):
        state = load(file).model.state_dict()
    weight = model.state_dict()["model.layers.0.mlp.up_proj.weight"]
    expected = torch.tensor(gguf.quants.dequantize(gguf.quants.quantize(weight.numpy(), KIND.Q8_0), KIND.Q8_0))
    assert torch.equal(state["model.layers.0.mlp.up_proj.weight"], expected)
    assert load(file, dtype="bfloat16").model.dtype == torch.bfloat16


def test_files_that_cannot_be_read(model, tmp_path, subtests):
    whole = write(tmp_path / "whole.gguf", model)
    (tmp_path / "two").mkdir()
    for name in ("two/1.gguf", "two/2.gguf", "part-00001-of-00002.gguf"):
        (tmp_path / name).touch()
    (tmp_path / "cut.gguf").write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    (tmp_path / "text.gguf").write_text("no model")
    write(tmp_path / "unknown.gguf", model, architecture="rwkv7")
    write(tmp_path / "lacking.gguf", model, leave_out=["blk.1.ffn_up.weight"])
    for name, message in (
        ("two", r"the folder has 2 GGUF files \(1.gguf, 2.gguf\): name one of them"),
        ("cut.gguf", "transformers cannot read this GGUF file"),
        ("text.gguf", "transformers cannot read this GGUF file"),
        ("part-00001-of-00002.gguf", "split into 2 files, which cannot be read: join them"),
        ("unknown.gguf", "transformers cannot read this GGUF file: .*rwkv7"),
        ("lacking.gguf", "1 tensors are missing or of another shape .*up_proj"),
        ("none.gguf", "none.gguf': no such file"),
    ):
        with subtests.test(name), pytest.raises(ValueError, match=message):
            read_outline(ModelConfig(path=str(tmp_path / name), device="cpu"))
    with pytest.raises(ValueError, match=r"model.revision = 'main': has no effect on the file"):
        load(whole, revision="main")
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_dir() and "models" in path.parent.name]


def begun(words, file):
    """A process of its own that reads the file."""
    words = words.replace("FILE", repr(str(file)))
    return subprocess.Popen([sys.executable, "-c", words], stdout=subprocess.PIPE, text=True)


SLOW = """
import time
from transformers import PreTrainedModel
from gspo.backends.hf.files import read_outline
from gspo.config.policy import ModelConfig
save = PreTrainedModel.save_pretrained
def slow(self, folder):
    save(self, folder)
    print("half", flush=True)
    time.sleep(600)
PreTrainedModel.save_pretrained = slow
read_outline(ModelConfig(path=FILE, device="cpu"))
"""


def test_ctrl_c_in_a_conversion_leaves_nothing_half_written(model, tmp_path):
    file = write(tmp_path / "tiny.gguf", model)
    process = begun(SLOW, file)
    assert process.stdout.readline() == "half\n"
    process.send_signal(signal.SIGINT)
    assert process.wait() != 0
    assert not any((tmp_path / "cache").rglob("*.safetensors"))
    assert load(file).model.dtype == torch.float32


LOGGED = """
import logging, sys
logging.basicConfig(level=logging.INFO, stream=sys.stdout)
from gspo.backends.hf.load import load_model
from gspo.config.policy import ModelConfig
load_model(ModelConfig(path=FILE, device="cpu"))
"""


def test_processes_that_start_together_convert_once(model, tmp_path):
    file = write(tmp_path / "tiny.gguf", model)
    processes = [begun(LOGGED, file) for _ in range(2)]
    texts = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], texts
    assert sum(text.count("converted in") for text in texts) == 1
