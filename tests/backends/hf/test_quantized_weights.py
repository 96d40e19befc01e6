"""Weights of few bits: what their products are, what is kept, and whole models of them below adapters."""

import json
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoModelForCausalLM

import gspo
from gspo.assembly.call_inputs import CallInputs
from gspo.assembly.models import loaded_model
from gspo.backends.hf import experts
from gspo.backends.hf.lora import Unadapted, adapted, packed, read_model
from gspo.backends.hf.quantized_weights import BITS, Packed, PackedLinear
from gspo.backends.hf.tiny import build_tiny
from gspo.config.commands import check_command
from gspo.config.files import from_dict
from gspo.config.policy import LoraConfig, ModelConfig
from tests.backends.hf.adapters import IDS, LIKE_QWEN, OTHERS, WITH_EXPERTS, gradients, logits, tiny, with_adapters
from tests.backends.hf.test_routing import FAMILIES
from tests.tiny_run import ROWS, likes_a, model, settings

CPU = torch.device("cpu")


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("kind", "bits"), [("nf4", 4.5), ("int8", 8.5)])
def test_a_weight_in_few_bits_stays_so_whatever_the_model_is_cast_to(kind, bits):
    linear = nn.Linear(160, 96)
    few = PackedLinear(linear, kind, CPU)
    whole, packed = few.weight.whole(), (few.weight.data, few.weight.absmax)
    assert 8 * sum(x.nbytes for x in packed) / linear.weight.numel() == bits and not few.weight.state_dict()
    few.to(torch.bfloat16)
    assert few.weight.whole().equal(whole) and few.bias.dtype == torch.bfloat16 == few.weight.whole(torch.bfloat16).dtype
    assert Packed(linear.weight, kind).data.equal(packed[0])


@pytest.mark.parametrize("kind", BITS)
@pytest.mark.parametrize("shape", [(3, 7), (96, 160), (2, 64), (4, 5, 33), (1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_block_of_64_is_rounded_to_its_code(kind, shape, dtype):
    weight = drawn(*shape).to(dtype)
    few = Packed(weight, kind)
    blocks = F.pad(weight.float().flatten(), (0, -weight.numel() % 64)).view(-1, 64)
    largest = blocks.abs().amax(1, keepdim=True)
    nearest = few.code[(blocks[..., None] / largest[..., None] - few.code).abs().argmin(-1)] * largest
    expected, most = (x.expand(-1, 64).flatten()[: weight.numel()].view(shape) for x in (nearest, largest))
    # bitsandbytes may take the code beside the nearest one, where both are about as near
    error, least = ((x.float() - weight.float()).abs() for x in (few.whole(), expected))
    assert (error <= least + (2**-8 if dtype == torch.bfloat16 else 1e-4) * most).all()


@pytest.mark.parametrize("kind", BITS)
def test_products_and_gradients_are_those_of_the_weight_it_stands_for(kind):
    linear = nn.Linear(160, 96)
    few = PackedLinear(linear, kind, CPU)
    x = drawn(2, 5, 160).requires_grad_()
    out, expected = few(x), F.linear(x, few.weight.whole(), linear.bias)
    torch.testing.assert_close(out, expected)
    torch.testing.assert_close(*(torch.autograd.grad((y * drawn(2, 5, 96, seed=1)).sum(), x) for y in (out, expected)))
    with torch.autocast("cpu", torch.bfloat16):
        narrow, right = few(x), F.linear(x, few.weight.whole(), linear.bias)
    assert narrow.dtype == right.dtype == torch.bfloat16
    torch.testing.assert_close(narrow, right, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("kind", BITS)
def test_a_stack_multiplies_each_row_with_its_experts_weight(kind):
    few, ends = Packed(drawn(3, 32, 64), kind), torch.tensor([2, 2, 7], dtype=torch.int32)
    x, whole = drawn(7, 64).requires_grad_(), few.whole()
    out, expected = few.product(x, ends), torch.cat([x[:2] @ whole[0].T, x[2:] @ whole[2].T])
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    ours, right = (torch.autograd.grad((y * drawn(7, 32, seed=1)).sum(), x)[0] for y in (out, expected))
    torch.testing.assert_close(ours, right, rtol=1e-5, atol=1e-5)


def test_no_whole_weight_is_kept_for_the_backward_pass(monkeypatch):
    made_whole, whole = [], Packed.whole

    def watched(self, dtype=None):
        made_whole.append(weakref.ref(out := whole(self, dtype)))
        return out

    monkeypatch.setattr(Packed, "whole", watched)
    few = nn.Sequential(*(PackedLinear(nn.Linear(256, 256), "nf4", CPU) for _ in range(3)))
    loss = few(drawn(4, 256).requires_grad_()).sum()
    assert len(made_whole) == 3 and not any(ref() is not None for ref in made_whole)
    loss.backward()
    assert len(made_whole) == 6 and not any(ref() is not None for ref in made_whole)


def made(family="qwen3_moe", kind="nf4", **options):
    return packed(with_adapters(tiny(family), **options), ModelConfig(quantize=kind, device="cpu"))


@pytest.mark.parametrize("family", LIKE_QWEN)
@pytest.mark.parametrize("kind", BITS)
def test_a_model_is_that_of_its_rounded_weights(family, kind, tmp_path):
    few = made(family, kind)
    names = {name for name, module in few.model.named_modules() if isinstance(module, Packed)}
    assert any("q_proj" in name or "kv_b_proj" in name for name in names) and any("experts" in name for name in names)
    assert not any("lm_head" in name or "embed" in name or "lora" in name for name in names)
    for name, merged, expected in (("merged", True, logits(few)), ("below", False, logits(Unadapted.of(few)))):
        few.save_whole(tmp_path / name, merged)
        whole = AutoModelForCausalLM.from_pretrained(tmp_path / name)
        with torch.no_grad():
            assert float((whole(IDS).logits - expected).abs().max() / expected.abs().max()) < 5e-5
    assert all(g.isfinite().all() and g.any() for g in gradients(few).values())


@pytest.mark.parametrize("kind", BITS)
def test_gradients_are_those_of_adapters_on_the_rounded_weights(kind, tmp_path):
    few = made(kind=kind)
    few.save_whole(tmp_path / "below", merged=False)
    plain = with_adapters(read_model(ModelConfig(str(tmp_path / "below"), device="cpu")))
    expected = gradients(plain)
    largest = max(float(g.abs().max()) for g in expected.values())
    for name, gradient in gradients(few).items():
        assert float((gradient - expected[name]).abs().max()) < 5e-6 * largest


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_experts_get_their_kernel_where_a_gpu_would_take_another(dtype, monkeypatch):
    plain = tiny("qwen3_moe")
    plain.model.to(dtype)
    monkeypatch.setattr(experts, "suits", lambda device, autocast: False)  # as on CUDA without autocast
    few = packed(with_adapters(plain), ModelConfig(quantize="nf4", device="cpu"))
    assert few.model.config._experts_implementation == experts.NAME and logits(few).isfinite().all()


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_is_packed_or_refused_with_the_key(family):
    if family in (*OTHERS, "jamba"):
        with pytest.raises(ValueError, match=r"model.quantize = .* leave it out"):
            made(family, targets=["all-linear"])
    else:
        assert logits(made(family, targets=["all-linear"])).isfinite().all()


def test_evaluations_keep_whole_weights(tmp_path):
    plain = model()
    plain.save(tmp_path / "model")
    four = {"path": str(tmp_path / "model"), "device": "cpu", "quantize": "nf4"}
    whole = loaded_model(from_dict({"model": four, "lora": {"rank": 2}}), CallInputs())
    assert logits(whole).equal(logits(plain))


def test_fine_tuning_on_4_bits_by_rows(tmp_path):
    rows = [{"prompt": f"{i}+1=", "completion": "ab"} for i in range(8)]
    four = {"model": {"quantize": "nf4"}, "lora": {"rank": 4}, "optimizer": {"name": "adamw_8bit", "lr": 1e-2}}
    config = four | {"train": {"steps": 4, "batch_size": 4}, "log": {"dir": str(tmp_path / "run")}}
    base = model()
    assert gspo.sft(base.model, rows, tokenizer=base.tokenizer, config=config).finished


def test_a_run_on_4_bits_learns_and_resumes_bit_for_bit(tmp_path):
    def run(folder, steps, resume=False):
        base = model()
        config = settings(
            folder, model={"quantize": "nf4"}, lora={"rank": 8, "targets": WITH_EXPERTS}, optimizer={"lr": 1e-2},
            train={"steps": steps}, rollout={"num_generations": 8}, algorithm={"epsilon": 3e-2, "epsilon_high": 4e-2},
        )  # fmt: skip
        result = gspo.train(base.model, ROWS, likes_a, tokenizer=base.tokenizer, config=config, resume=resume)
        return [json.loads(line) for line in (result.folder / "metrics.jsonl").read_text().splitlines()]

    whole = run(tmp_path / "whole", 8)
    run(tmp_path / "part", 4)
    again = run(tmp_path / "part", 8, resume=True)
    assert whole[-1]["reward"] > whole[1]["reward"] and max(step["mismatch/kl"] for step in whole[1:]) < 1e-8
    for a, b in zip(whole, again, strict=True):
        assert all(a.get(name) == b.get(name) for name in ("loss", "grad_norm", "reward", "kl", "entropy"))
    files = {path.name for path in (tmp_path / "whole" / "model").iterdir()}
    assert "adapter_model.safetensors" in files and "model.safetensors" not in files


def test_bad_input():
    with pytest.raises(ValueError, match=r'model.quantize = "nf4": the experts of a .* in a way of their own'):
        made("gpt_oss")
    with pytest.raises(ValueError, match=r"model.quantize = 'nf4' has no effect: .*train adapters on them \(lora.rank\)"):
        check_command(from_dict({"model": {"path": "m", "quantize": "nf4"}, "task": {"source": "x.jsonl"}}), "train")
    with pytest.raises(ValueError, match=r"model.quantize = 'fp4': allowed are none, nf4, int8"):
        from_dict({"model": {"quantize": "fp4"}})
    with pytest.raises(ValueError, match=r'model.quantize = "nf4": the layers of a gpt2 .* nothing to pack: leave it out'):
        gpt2 = build_tiny({"model_type": "gpt2", "n_embd": 32, "n_layer": 1, "n_head": 2}, model().tokenizer)
        packed(adapted(gpt2, LoraConfig(rank=2, targets=["c_attn"])), ModelConfig(quantize="nf4"))
