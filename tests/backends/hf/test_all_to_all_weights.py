"""Weights in shards that some ranks need whole. Ranks are processes of this machine (gloo)."""

import pytest
import torch

from gspo.backends.hf.routers import routers
from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer, tiny_qwen3_moe
from gspo.config.scale import ScaleConfig
from gspo.distributed.ranks import whole
from tests.backends.hf.counted import Counting
from tests.backends.hf.folders import load, load_on, model_in, weights_in
from tests.live import Live
from tests.tiny_run import PIECES
from tests.together import together

UNEVEN = (*"efghijk",)  # with others, as many tokens as 2 or 4 ranks do not divide


def exchanged(ranks, path, scale):
    """What comes of an exchange, and what should."""
    from gspo.backends.hf.all_to_all_weights import Gathering

    model = load_on(ranks, path, scale)
    expected = {name: whole(p.detach()).clone() for name, p in model.named_parameters()}
    gathering, names = Gathering(model.named_parameters()), list(expected)
    wanted = [names[number :: ranks.size + 1] for number in range(ranks.size)]
    wanted[-1] = []
    types = {name: torch.bfloat16 if number % 2 else torch.float32 for number, name in enumerate(names)}
    with Counting() as count:
        got = gathering.exchange(wanted, types, torch.device("cpu"))
    assert list(got) == wanted[ranks.number]
    for name, x in got.items():
        assert x.dtype == types[name] and torch.equal(x, expected[name].to(types[name])), name
    every = [name for name, _ in model.tensors()]
    assert every == (names if ranks.number == 0 else [])
    leaving = 0
    for to, name in ((to, name) for to, some in enumerate(wanted) if to != ranks.number for name in some):
        mine = sum(rows.end - rows.begin for rows in gathering.rows[name] if rows.sender(to) == ranks.number)
        leaving += mine * expected[name][0].numel() * types[name].itemsize
    return leaving, count.bytes


@pytest.mark.parametrize(
    "size, scale, pieces",
    [
        (2, ScaleConfig(), UNEVEN),
        (4, ScaleConfig(expert_parallel=2), ()),
        (4, ScaleConfig(expert_parallel=2, data_parallel_replicas=2), UNEVEN),
        (4, ScaleConfig(expert_parallel=4), UNEVEN),
    ],
)
def test_each_rank_gets_what_it_asks_for_in_the_type_that_is_asked_for(tmp_path, size, scale, pieces):
    path = model_in(tmp_path, pieces=(*PIECES, "c", *pieces))
    for leaving, sent in together(exchanged, size, path, scale):
        assert dict(sent) == {"rows": leaving}


def saved(ranks, path, folder):
    """The most bytes beside its shards that a rank holds while a model is saved, and what leaves it; then in bfloat16."""
    model, found = load_on(ranks, path, autocast="bfloat16"), []
    for name in ("plain", "engine"):
        with Live() as live, Counting() as count:
            model.save(f"{folder}/{name}", merged=name == "engine")
        found.append((live.peak, count.bytes["rows"]))
    return found


def test_no_rank_holds_more_than_layers_and_bytes_halve_for_an_engine(tmp_path):
    config = tiny_qwen3_moe(hidden=64, layers=12, experts=8, expert_width=64, tie_word_embeddings=False)
    build_tiny(config, longest_match_tokenizer((*PIECES, "c")), 0).save(tmp_path / "model")
    whole_one = load(tmp_path / "model")
    weights = dict(whole_one.named_parameters())
    size = 4 * sum(p.numel() for p in weights.values())
    every = together(saved, 2, str(tmp_path / "model"), str(tmp_path))
    for (plain, sent), (engine, less) in every:
        assert engine < plain < 0.5 * size  # a layer of 12 whole, what it is made of, and as it is written
        assert sent == pytest.approx(size / 4, rel=0.05) and less == pytest.approx(sent / 2, rel=0.05)
    for name, exact in (("plain", True), ("engine", False)):
        found = weights_in(tmp_path / name)
        read = load(tmp_path / name)
        gates = {id(p) for router in routers(whole_one.model) for p in router.parameters()}
        for key, p in read.named_parameters():
            kept = exact or weights[key].ndim == 1 or id(weights[key]) in gates
            assert torch.equal(p, weights[key] if kept else weights[key].bfloat16().float()), key
        assert {x.dtype for x in found.values()} == ({torch.float32} if exact else {torch.float32, torch.bfloat16})


def saved_by_all(ranks, path, folder):
    """Saves a model that ranks hold together, each into a folder of its own where `folder` has a place for its number."""
    from gspo.backends.hf import sharded

    sharded.VISIBLE_SECONDS = 0.3
    model = load_on(ranks, path)
    try:
        model.save(folder.format(ranks.number))
    except OSError as error:
        return str(error)
    return ""


def test_what_is_no_parameter_is_saved_too(tmp_path):
    """Some routers have a bias that no gradient moves: a buffer, without which their model does not load."""
    config = {
        "model_type": "glm4_moe", "hidden_size": 32, "intermediate_size": 64, "moe_intermediate_size": 16, "head_dim": 8,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "n_routed_experts": 4,
        "num_experts_per_tok": 2, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
        "tie_word_embeddings": False,
    }  # fmt: skip
    model = build_tiny(config, longest_match_tokenizer((*PIECES, "c")), 0)
    biases = {name: b for name, b in model.model.named_buffers() if name.endswith("e_score_correction_bias")}
    for number, bias in enumerate(biases.values()):
        bias.copy_(torch.arange(4) + number)
    model.save(tmp_path / "model")
    assert together(saved_by_all, 2, str(tmp_path / "model"), str(tmp_path / "saved")) == ["", ""]
    found = dict(load(tmp_path / "saved").model.named_buffers())
    assert len(biases) == 2 and all(torch.equal(found[name], bias) for name, bias in biases.items())


def test_a_save_onto_disks_that_ranks_do_not_share_is_an_error_on_all(model_of, tmp_path):
    for text in together(saved_by_all, 2, model_of(False, False), str(tmp_path / "disk{}" / "saved")):
        assert "the leader does not see model-0000" in text and "name a folder that all machines share" in text
