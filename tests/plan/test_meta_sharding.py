"""Models without weights: what a rank holds, and what ranks really send against the formulas."""

import pytest

from gspo.assembly.host_memory import BFLOAT16, FLOAT32
from gspo.backends.hf.load import load_model
from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer, tiny_qwen3_moe
from gspo.config.policy import ModelConfig
from gspo.plan import cost_model
from gspo.plan.cost_model import Spread, Work
from gspo.plan.meta_sharding import shard_on_meta
from tests.backends.hf import counted
from tests.together import together

WITHIN = 0.02


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A folder with tiny models: a mixture, one with tied embeddings, and one whose layers two ranks do not divide."""
    folder, tokenizer = tmp_path_factory.mktemp("models"), longest_match_tokenizer([*"abcdefgh"])
    made = {"layers": 4, "vocab_size": 400, "tie_word_embeddings": False}
    build_tiny(tiny_qwen3_moe(**made), tokenizer).save(folder / "moe")
    build_tiny(tiny_qwen3_moe(**made | {"tie_word_embeddings": True}), tokenizer).save(folder / "tied")
    build_tiny(tiny_qwen3_moe(**made | {"vocab_size": 401, "experts": 5}), tokenizer).save(folder / "uneven")
    return folder


@pytest.fixture(scope="module")
def ranks(tiny):
    """What two real ranks counted."""
    return together(counted.counts, counted.RANKS, tiny)


def total(ranks, case, phase, what):
    return sum(rank[case][phase].get(what, 0) for rank in ranks)


@pytest.mark.parametrize("case", counted.CASES)
def test_ranks_send_what_the_formulas_say(ranks, tiny, case):
    model, experts, replicas, checkpointing, autocast = counted.CASES[case]
    spread = Spread(counted.RANKS, experts, replicas)
    cfg = ModelConfig(path=str(tiny / model), autocast=autocast)
    sharding = shard_on_meta(cfg, spread)
    assert any(weight.narrow for layer in sharding.layers for weight in layer.weights) == (autocast == "bfloat16")
    work = Work(1, 1, counted.ROWS * counted.LENGTH, counted.ROWS * counted.LENGTH)
    rows = {row.what: row for row in cost_model.sent(sharding.layers, sharding.shape, spread, work, FLOAT32, checkpointing)}

    def said(start, end=""):
        found = [row.training for name, row in rows.items() if name.startswith(start) and name.endswith(end)]
        return counted.RANKS * sum(found)

    held = [rank[case]["held"] for rank in ranks]
    stay = (experts - 1) / experts  # rows that a rank sends to itself were counted too
    pairs = {
        "all-gather, forward": (total(ranks, case, "forward", "gather"), said("all-gather", "forward")),
        "all-gather, backward": (total(ranks, case, "backward", "gather"), said("all-gather", "backward")),
        "reduce-scatter": (total(ranks, case, "backward", "reduce"), said("reduce-scatter")),
        "all-reduce": (total(ranks, case, "backward", "copies"), said("all-reduce")),
        "rows, forward": (total(ranks, case, "forward", "rows") * stay, said("tokens", "forward")),
        "rows, backward": (total(ranks, case, "backward", "rows") * stay, said("tokens", "backward")),
        "weights": (
            total(ranks, case, "published", "rows"),
            # The formula is for the first rank. Nobody sends what fills up another's shard.
            cost_model.published(sharding.weights, spread, FLOAT32).step * sum(held) / held[0],
        ),
    }
    assert {name: pair for name, pair in pairs.items() if pair[0] != pytest.approx(pair[1], rel=WITHIN)} == {}
    sharded = {"all-gather, forward", "all-gather, backward", "reduce-scatter", "weights"}
    expected = sharded if replicas == 1 else {"all-reduce"}
    rows = {"rows, forward", "rows, backward"} if experts > 1 else set()
    assert {name for name, pair in pairs.items() if pair[0]} == expected | rows
    assert sharding.held == held[0] == max(held)


def test_checkpointing_repeats_the_exchange_of_the_forward_pass_alone(ranks):
    plain, again = (total(ranks, case, "backward", "rows") for case in ("experts", "experts, checkpointing"))
    assert again - plain == total(ranks, "experts, checkpointing", "forward", "rows") > 0
    gathers = [total(ranks, case, "backward", "gather") for case in ("experts", "experts, checkpointing")]
    assert gathers[0] == gathers[1]


def test_autocast_keeps_copies_of_weights_in_one_process_alone(ranks, tiny):
    cfg = ModelConfig(path=str(tiny / "moe"), device="cpu", autocast="bfloat16")
    sharding = shard_on_meta(cfg, Spread(1))
    every = [weight for layer in sharding.layers for weight in layer.weights]
    copies = BFLOAT16 * cost_model.cast(every, sharding.embedded, experts=True)
    assert counted.casts(load_model(cfg), False)[0] == pytest.approx(copies, rel=WITHIN)
    # On ranks they are gathered in that type, but for routers, and given up.
    routers = sum(BFLOAT16 * weight.size for weight in every if weight.rows == 8 and not weight.experts)
    for rank in ranks:
        assert rank["casts"][0][0] == routers and max(rank["casts"][0][1], *rank["casts"][1]) <= routers


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("model", ["moe", "uneven", "tied"])
def test_the_formula_counts_what_the_first_rank_holds(tiny, ranks, model):
    cfg, spread = ModelConfig(path=str(tiny / model)), Spread(ranks)
    if model == "tied" and 400 % ranks:
        with pytest.raises(ValueError, match="embeddings are tied"):
            shard_on_meta(cfg, spread)
    else:
        sharding = shard_on_meta(cfg, spread)
        assert sharding.held == cost_model.held(sharding.weights, spread)
