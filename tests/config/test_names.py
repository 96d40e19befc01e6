import dataclasses
import re

from gspo.config.names import ELSEWHERE, all_keys, nearest_key
from gspo.config.schema import SECTIONS


def test_nearest_keys():
    keys = all_keys()
    assert len(keys) == len(set(keys)) == sum(len(dataclasses.fields(cls)) for cls in SECTIONS.values())
    assert nearest_key("lr") == ", did you mean optimizer.lr?"
    assert nearest_key("train.lr") == ", did you mean optimizer.lr?"
    assert nearest_key("eval.num_generation") == ", did you mean eval.num_generations?"
    assert nearest_key("rollout.num_generation") == ", did you mean rollout.num_generations?"
    assert nearest_key("scale.rank") == ", did you mean scale.ranks?"  # and not lora.rank, which is nearer
    assert nearest_key("rollout.zzz") == ""


def test_other_programs_names_lead_to_keys_that_exist():
    keys, names = set(all_keys()), {key.partition(".")[2] for key in all_keys()}
    for name, ours in ELSEWHERE.items():
        named = re.findall(r"[a-z_]+\.[a-z_0-9]+", ours)
        assert (named or "resume" in ours) and set(named) <= keys, (name, ours)
        assert name not in names, f"{name} is ours too: the nearest key finds it"


# Of TRL, verl and OpenRLHF, as their users write them.
KNOWN = {
    "learning_rate": "optimizer.lr",
    "per_device_train_batch_size": "rollout.num_prompts",
    "gradient_accumulation_steps": "train.micro_batch_tokens",
    "num_iterations": "algorithm.epochs",
    "max_completion_length": "rollout.max_completion_length",
    "kl_coef": "algorithm.beta",
    "temperature": "rollout.temperature",
    "actor_rollout_ref.actor.optim.lr": "optimizer.lr",
    "actor_rollout_ref.actor.ppo_mini_batch_size": "algorithm.mini_batches",
    "data.train_files": "task.source",
    "train.n_samples_per_prompt": "rollout.num_generations",
    "importance_sampling_level": "algorithm.name",
}


def test_known_names_of_other_programs():
    for word, ours in KNOWN.items():
        assert re.search(rf"\b{re.escape(ours)}\b", nearest_key(word)), word
