import dataclasses
import re

from gspo.config.names import ELSEWHERE, all_keys, nearest_key
from gspo.config.schema import SECTIONS


def test_nearest_keys():
    keys = all_keys()
    assert len(keys) == len(set(keys)) == sum(len(dataclasses.fields(cls)) for cls in SECTIONS.values())
    assert nearest_key("lr") == nearest_key("train.lr") == ", did you mean optimizer.lr?"
    assert nearest_key("x.temperature", "--") == ", did you mean --rollout.temperature or --eval.temperature?"
    assert nearest_key("eval.num_generation") == ", did you mean eval.num_generations?"
    assert nearest_key("scale.rank") == ", did you mean scale.ranks?"  # and not lora.rank, which is nearer
    for typed, key in (("model.paht", "model.path"), ("algorithm.bata", "algorithm.beta"), ("lora.rans", "lora.rank")):
        assert nearest_key(typed) == f", did you mean {key}?"
    assert nearest_key("rollout.zzz") == ""
    whole = "; what other programs call lr_warmup_steps is optimizer.warmup, in updates here"
    assert nearest_key("actor_rollout_ref.actor.optim.lr_warmup_steps") == nearest_key("--lr-warmup-steps=1") == whole


def test_dotted_names_of_other_programs(subtests):
    for theirs, ours in (
        ("custom_reward_function.path", "reward.functions"),
        ("actor_rollout_ref.actor.router_replay.mode", "algorithm.router_replay"),
        ("actor_rollout_ref.rollout.name=vllm", "sampler.engine"),
        ("actor_rollout_ref.rollout.val_kwargs.n", "eval.num_generations"),
        ("actor_rollout_ref.rollout.max_num_batched_tokens", "sampler.engine_args"),
        ("algorithm.filter_groups.enable", "rollout.dynamic_sampling_rounds"),
        ("reward_model.overlong_buffer.len", "rollout.overlong_buffer"),
        ("actor_rollout_ref.actor.optim.weight_decay", "optimizer.weight_decay"),
        ("data.truncation", "task.too_long"),
        ("--seed", "train.seed"),
        ("lora.r", "lora.rank"),
        ("trainer.experiment_name", "log.dir"),
        ("vllm_server_base_url", "sampler.urls"),
        ("generation_batch_size", "rollout.num_prompts"),
    ):
        with subtests.test(theirs):
            assert f" {ours}" in nearest_key(theirs)
    assert nearest_key("--min_p") == nearest_key("reward_fn.path") == ""


def test_other_programs_names_lead_to_keys_that_exist():
    keys, names = set(all_keys()), [key.partition(".")[2] for key in all_keys()]
    for name, ours in ELSEWHERE.items():
        named = re.findall(r"[a-z_]+\.[a-z_0-9]+", ours)
        assert (named or "resume" in ours) and set(named) <= keys, (name, ours)
        assert names.count(name) != 1, f"{name} is ours too: the nearest key finds it"
