"""Settings that exclude each other: each row of the table refuses what it is for, and lets the defaults pass."""

import pytest

from gspo.backends.vllm.plugin.gspo_vllm import NEEDED
from gspo.config.commands import check_command
from gspo.config.conflicts import ALWAYS, LEARN, SERVE, TRAIN, check_conflicts
from gspo.config.engines import OURS
from gspo.config.files import from_dict

VLLM = {"engine": "vllm"}
SLEEPS = VLLM | {"sleep_level": 2}
NGRAM = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
DRAFT = {"method": "draft_model", "model": "small", "num_speculative_tokens": 3}
TWO = {"urls": ["http://x", "http://y"]}
PLAYED = {"environment": "boxes:Box"}
BY_TOKEN = {"algorithm": {"name": "gspo_token"}}
TRAINED = [
    ({"algorithm": {"scale_rewards": "gdpo"}},
     r"scale_rewards = 'gdpo' and reward.functions = \['task'\]: it scales several rewards apart, and there is one"),
    ({"rollout": {"top_p": 0.9}}, "rollout.top_p = 0.9: training needs the whole distribution"),
    ({"rollout": {"top_k": 5}}, "rollout.top_k = 5: .*eval.top_k are free"),
    ({"rollout": {"dynamic_sampling_rounds": 2, "max_staleness": 1}, "sampler": VLLM},
     "rollout.dynamic_sampling_rounds = 2 and rollout.max_staleness = 1"),
    ({"rollout": {"max_staleness": 1}}, "max_staleness = 1 and sampler.engine = 'embedded': this engine cannot run ahead"),
    ({"lora": {"rank": 4}, "sampler": VLLM | {"weight_transfer": "broadcast"}}, "lora.rank = 4: adapters go through"),
    ({"rollout": {"max_staleness": 1}, "sampler": SLEEPS}, "sleep_level = 2 and rollout.max_staleness = 1: vLLM"),
    ({"sampler": SLEEPS | {"engines": 2}}, "sleep_level = 2 and sampler.engines = 2 and .*: several GPUs would sleep"),
    ({"sampler": SLEEPS | TWO}, "sampler.sleep_level = 2 and .* sampler.urls = .*: several GPUs would sleep"),
    ({"sampler": SLEEPS | {"engine_args": {"tensor_parallel_size": 2}}}, "sleep_level = 2 and .*: several GPUs would sleep"),
    ({"sampler": VLLM | TWO | {"python": "p"}}, "sampler.urls = .*: these servers run already"),
    ({"sampler": VLLM | {"urls": ["http://x", "http://x/"]}}, "sampler.urls = .*: names a server twice"),
    *(
        ({"sampler": VLLM | {"engine_args": {name: "x"}}}, f"sampler.engine_args = .*{name}.* are settings of")
        for name in (
            *("quantization", "kv_cache_dtype", "speculative_config", "kv-cache-dtype", "spec_method", "q"),
            *("speculative_config.rejection_sample_method", "speculative-config.method", "quantization_config.x"),
            *("quantization-config", "calculate_kv_scales"),
        )
    ),
    *(
        ({"sampler": VLLM | {"engine_args": {name: "x"}}}, f"sampler.engine_args = .*{name}.* are set by the run")
        for name in ("disable-log-stats", "disable_log_stats", "port", "logprobs_mode")
    ),
    ({"sampler": VLLM | {"engine_args": {"disable_log_stats": True}}}, "disable_log_stats.* are set by the run"),
    ({"sampler": VLLM, "eval": {"temperature": 3}}, "rollout.temperature = 1.0 and eval.temperature = 3.0: .* up to 2"),
    *(({"sampler": VLLM} | more, "rollout.temperature = .*: vLLM samples at temperatures up to 2: lower it, in each stage")
      for more in ({"rollout": {"temperature": 2.1}}, {"stage": [{"at": 3, "temperature": 2.5}]})),
    *(
        ({"sampler": VLLM | {"speculative_config": {key: "x"} | NGRAM}}, f"'{key}': .*samples exactly with these keys alone")
        for key in ("rejection_sample_method", "synthetic_acceptance_length", "no_such")
    ),
    *(
        ({"sampler": VLLM | {"speculative_config": {"method": method}}}, f"'{method}'}}: `method` is none of ngram")
        for method in ("mtp", "eagle3", "draft_model")
    ),
    ({"sampler": VLLM | {"speculative_config": {"num_speculative_tokens": 2}}}, "2}: `method` is none of ngram"),
    *(
        ({"sampler": VLLM | {"speculative_config": {"method": method} | more}}, f"'{method}'.*: with suffix and custom_")
        for method in ("suffix", "custom_class")
        for more in ({}, {"model": "x"})
    ),
    ({"sampler": SLEEPS | {"speculative_config": DRAFT}}, "and sampler.sleep_level = 2: level 2 drops the draft"),
    *(
        ({"sampler": VLLM | {"speculative_config": NGRAM} | args} | more, r"speculative_config = .*: vLLM may report")
        for args, more in (
            ({}, {"algorithm": {"router_replay": "R3"}}),
            ({"engine_args": {"enable_return_routed_experts": True}}, {}),
            ({"engine_args": {"enable-return-routed-experts": True}}, {}),
        )
    ),
    ({"task": PLAYED, "reward": {"functions": ["exact"]}}, "gives the reward itself"),
    ({"train": {"offload_optimizer": True}, "model": {"device": "cpu"}},
     "train.offload_optimizer = True and model.device = 'cpu': on a CPU there is nowhere to offload to"),
    ({"train": {"offload_reference": True}, "model": {"device": "cpu"}, "algorithm": {"beta": 0.1}},
     "train.offload_reference = True and model.device = 'cpu': on a CPU there is nowhere to offload to"),
    ({"task": {"source": "verifiers:v"} | PLAYED}, "task.environment = .* is an environment itself"),
    ({"task": {"source": "verifiers:v", "eval_source": "a"}}, "task.eval_source = 'a' .*both must be verifiers:NAME"),
    ({"task": {"eval_source": "verifiers:v"}}, "both must be verifiers:NAME, or neither"),
    ({"code": {"cpu_seconds": 90}}, "code.cpu_seconds = 90.0 and code.total_cpu_seconds = 60.0: one test would have more"),
    ({"lora": {"rank": 4}, "model": {"quantize": "nf4", "attention": "flash_attention_2"}},
     "model.quantize = 'nf4' and model.attention = 'flash_attention_2': the model is read and tried on the CPU"),
    ({"task": {"source": "reasoning_gym:gcd"}, "refresh": {"every": 5, "source": "rows:new"}},
     "refresh.source = 'rows:new' and reward.functions = .*the rows of a function have no scorer"),
    ({"refresh": {"every": 100, "drop_above": 0.9}}, "refresh.every = 100 and train.steps = 100: the run ends before"),
    ({"train": {"offload_optimizer": True}, "optimizer": {"name": "adamw_8bit"}}, "moments of 8 bits stay on the device"),
    ({"model": {"quantize": "nf4", "expert_kernels": "eager"}, "lora": {"rank": 2}}, "= 'nf4' and model.expert_kernels"),
    ({"model": {"quantize": "nf4"}, "lora": {"rank": 2}, "algorithm": {"name": "ppo", "critic": "copy"}},
     "model.quantize = 'nf4' and algorithm.critic = 'copy': a critic with a body of its own"),
    ({"train": {"offload_reference": True}}, "offload_reference = True and algorithm.beta = 0.0: .*no reference model"),
    ({"teacher": {"path": "t"}}, "teacher.path = 't' and algorithm.name = 'gspo': .*: set algorithm.name to gspo_token, "),
    ({"teacher": {"path": "./m"}, **BY_TOKEN}, "teacher.path = './m' and model.path = 'm': the model agrees with itself"),
    ({"teacher": {"path": "t"}, **BY_TOKEN, "rollout": {"dynamic_sampling_rounds": 1}},
     "teacher.path = 't' and rollout.dynamic_sampling_rounds = 1: a teacher also teaches groups of equal rewards"),
    *(({"teacher": {"path": "t", "url": "http://x/v1"}, **BY_TOKEN} | more,
       f"teacher.url = 'http://x/v1' and rollout.temperature = {shown}: a server returns log-probabilities at temperature 1")
      for more, shown in (({"rollout": {"temperature": 0.7}}, 0.7), ({"stage": [{"at": 3, "temperature": 1.2}]}, 1.0))),
    ({"teacher": {"path": "t", "url": "http://x/v1"}, **BY_TOKEN, "train": {"offload_reference": True}},
     "offload_reference = True and algorithm.beta = 0.0: .*no teacher is loaded here either"),
    ({"train": {"offload_reference": True}, "algorithm": {"beta": 0.1}, "lora": {"rank": 2}},
     "train.offload_reference = True and lora.rank = 2: with adapters there is no reference model"),
]  # fmt: skip
READ = [
    *(
        (
            {"rollout": {"overlong_buffer": 9, "max_completion_length": length}, "stage": stages},
            f"rollout.overlong_buffer = 9 and rollout.max_completion_length = {length}: the penalty begins within",
        )
        for length, stages in ((8, []), (20, [{"at": 3, "max_completion_length": 8}]))
    ),
    ({"reward": {"functions": []}, "eval": {"every": 5}, "teacher": {"path": "t"}},
     r"reward.functions = \[\] and eval.every = 5: nothing tells a right completion from a wrong one"),
    ({"eval": {"every": 5, "num_prompts": 0}}, "eval.every = 5 and eval.num_prompts = 0: nothing is held out"),
    (
        {
            "reward": {"functions": ["judge"]}, "judge": {"model": "m", "rubric": "r", "mode": "rank"},
            "eval": {"every": 1, "num_generations": 1},
        },
        "judge.mode = 'rank' and eval.num_generations = 1: the judge compares .* an evaluation needs at least 2",
    ),
    ({"refresh": {"drop_above": 0.5, "drop_below": 0.5}}, "refresh.drop_below = 0.5 and refresh.drop_above = 0.5: no share"),
    ({"refresh": {"every": 5}}, "refresh.every = 5 and .*: a refresh would drop nothing"),
]  # fmt: skip
SERVED = [
    ({"algorithm": {"scale_rewards": "gdpo"}}, "algorithm.scale_rewards = 'gdpo': agents give each trajectory one"),
    ({"eval": {"every": 2}}, "eval.every = 2: agents evaluate themselves"),
    ({"rollout": {"dynamic_sampling_rounds": 1}}, "rollout.dynamic_sampling_rounds = 1: agents choose"),
    ({"rollout": {"max_staleness": 1}}, "serve.max_age says how old a turn may"),
    ({"sampler": SLEEPS}, "sampler.sleep_level = 2: agents may ask at any time"),
    ({"serve": {"host": " "}}, "serve.host = ' ': would listen on every address"),
    ({"task": PLAYED}, "agents that are served play by themselves"),
]


def test_every_conflict_is_refused_with_its_values_and_the_remedy(subtests):
    base = {"model": {"path": "m"}, "task": {"source": "rows.jsonl"}, "reward": {"functions": ["task"]}}
    cases = [(None, *case) for case in READ] + [("train", *case) for case in TRAINED] + [("serve", *case) for case in SERVED]
    reasons = []
    for command, tables, message in cases:
        given = base if command == "train" else {"model": base["model"]}
        tables = given | {name: table if name == "stage" else given.get(name, {}) | table for name, table in tables.items()}
        with subtests.test(message), pytest.raises(ValueError, match=message) as refused:
            config = from_dict(tables)
            if command is not None:
                check_command(config, command)
        reasons.append(str(refused.value))
    rows = [row for table in (ALWAYS, TRAIN, SERVE, LEARN) for row in table]
    assert [row for row in rows if not any(reason.endswith(row.why) for reason in reasons)] == []


def test_drafts_beside_experts_that_are_not_reported():
    sampler = VLLM | {"speculative_config": NGRAM, "engine_args": {"enable_return_routed_experts": False}}
    check_conflicts(from_dict({"model": {"path": "m"}, "sampler": sampler}), TRAIN)


def test_limits_of_vllm_bind_no_other_engine():
    hot = {"rollout": {"temperature": 3}, "eval": {"temperature": 0}}
    check_conflicts(from_dict({"model": {"path": "m"}} | hot), TRAIN)
    own = {"engine": "mine:make", "engine_args": {"port": 9}}
    check_conflicts(from_dict({"model": {"path": "m"}, "sampler": own, "rollout": {"temperature": 3}}), TRAIN)
    warm = {"rollout": {"temperature": 2}, "eval": {"temperature": 2}}
    check_conflicts(from_dict({"model": {"path": "m"}, "sampler": VLLM} | warm), TRAIN)


def test_arguments_of_vllm_that_say_what_the_run_says():
    """A run that began with them can be resumed."""
    same = {"generation-config": "vllm", "disable_log_stats": False, "logprobs_mode": "processed_logprobs"}
    check_conflicts(from_dict({"model": {"path": "m"}, "sampler": VLLM | {"engine_args": same}}), TRAIN)
    for name, value in OURS.items():
        flag = f"--{name.replace('_', '-')}"
        assert value in (False, None) or (flag if value is True else f"{flag}={value}") in NEEDED
