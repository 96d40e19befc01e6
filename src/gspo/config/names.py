"""Names of settings: those of gspo, and what other programs call the same settings."""

from __future__ import annotations

import dataclasses
import difflib

from gspo.config.schema import SECTIONS

COMPLETIONS = "rollout.num_prompts and rollout.num_generations, whose product is the completions of a step"
MEMORY = "train.micro_batch_tokens, in tokens"
STEPS = "train.steps, in rollout batches"
ENGINE = "a name in sampler.engine_args"
RESUME = "--resume (from Python: resume=True)"
"""How to resume a run, for messages that appear both on the command line and from Python."""
STUDIED = 'for a study name a sampler of yours: sampler.engine = "module:function", as lab/studies/dials.py does'
REMOVED: dict[str, str] = {
    "sampler.url": 'give sampler.urls = ["http://..."]',
    **dict.fromkeys(("sampler.quantize", "rollout.delay"), STUDIED),
    "model.kernels": "leave it out: on a CPU all operations are torch's now",
    "sampler.in_process": "leave it out: vLLM runs as a server, and sampler.sleep_level gives a shared GPU's memory back",
}
"""Removed keys, and what to do instead."""
RENAMED = {
    "rollout.refill": "rollout.dynamic_sampling_rounds",
    "reward.correct_at": "reward.correct_threshold",
    "reward.env": "reward.env_passthrough",
    "train.max_bad_updates": "train.max_skipped_updates",
    "code.seconds": "code.cpu_seconds",
    "code.total_seconds": "code.total_cpu_seconds",
    "code.output": "code.max_output_mib",
    "sampler.exchange": "sampler.weight_dir",
    "model.experts": "model.expert_kernels",
    "scale.experts": "scale.expert_parallel",
    "scale.replicas": "scale.data_parallel_replicas",
}
"""Keys that had another name."""
# Another program's name -> gspo's, with a note if it counts something else. Names that gspo uses too are not listed.
ELSEWHERE: dict[str, str] = {
    # optimizer
    **dict.fromkeys(("learning_rate", "actor_learning_rate"), "optimizer.lr"),
    **dict.fromkeys(("lr_scheduler_type", "lr_scheduler", "lr_warmup_style", "warmup_style"), "optimizer.schedule"),
    **dict.fromkeys(("warmup_steps", "lr_warmup_steps", "num_warmup_steps"), "optimizer.warmup, in updates"),
    **dict.fromkeys(("warmup_ratio", "lr_warmup_ratio", "lr_warmup_steps_ratio"), "optimizer.warmup, in updates"),
    **dict.fromkeys(("min_lr_ratio", "min_lr_rate"), "optimizer.min_lr"),
    **dict.fromkeys(("adam_beta1", "adam_beta2", "adam_betas", "betas"), "optimizer.beta1 and optimizer.beta2"),
    "adam_epsilon": "optimizer.eps",
    **dict.fromkeys(("optim", "optimizer_type", "use_8bit_adam"), "optimizer.name"),
    **dict.fromkeys(("grad_clip", "clip_grad", "max_norm"), "optimizer.max_grad_norm"),
    # how much a step and an update hold
    **dict.fromkeys(
        ("per_device_train_batch_size", "train_batch_size", "rollout_batch_size", "gen_batch_size", "global_batch_size"),
        COMPLETIONS,
    ),
    **dict.fromkeys(
        ("gradient_accumulation_steps", "micro_train_batch_size", "ppo_micro_batch_size", "ppo_micro_batch_size_per_gpu",
         "ppo_max_token_len_per_gpu", "max_tokens_per_gpu", "log_prob_micro_batch_size_per_gpu"),
        MEMORY,
    ),
    **dict.fromkeys(("micro_rollout_batch_size", "max_num_seqs", "per_device_eval_batch_size"), "sampler.batch_size"),
    **dict.fromkeys(("steps_per_generation", "ppo_mini_batch_size", "num_ppo_mini_batches", "ppo_minibatch_size"),
                    "algorithm.mini_batches, the number of updates that a batch is split into"),
    **dict.fromkeys(("num_iterations", "ppo_epochs", "max_epochs", "num_ppo_epochs", "update_epochs"), "algorithm.epochs"),
    **dict.fromkeys(("num_train_epochs", "total_epochs", "num_episodes", "max_steps", "total_training_steps", "num_steps"),
                    STEPS),
    # sampling
    **dict.fromkeys(("n_samples_per_prompt", "num_return_sequences", "group_size", "rollout_n", "n"),
                    "rollout.num_generations"),
    **dict.fromkeys(("max_new_tokens", "max_response_length", "generate_max_len", "response_length", "max_tokens"),
                    "rollout.max_completion_length"),
    **dict.fromkeys(("max_prompt_length", "prompt_max_len", "filter_overlong_prompts"),
                    "task.too_long, for prompts that leave no room for the longest completion"),
    **dict.fromkeys(("dynamic_sampling", "filter_groups", "dynamic_filtering"), "rollout.dynamic_sampling_rounds"),
    **dict.fromkeys(("use_vllm", "vllm_mode"), 'sampler.engine = "vllm"'),
    **dict.fromkeys(("vllm_gpu_memory_utilization", "gpu_memory_utilization", "tensor_parallel_size",
                     "tensor_model_parallel_size", "vllm_tensor_parallel_size", "enforce_eager", "max_model_len"), ENGINE),
    # algorithm
    **dict.fromkeys(("kl_coef", "init_kl_coef", "kl_loss_coef", "kl_penalty_coef"), "algorithm.beta"),
    "kl_loss_type": "algorithm.kl_estimator",
    **dict.fromkeys(("clip_ratio", "cliprange", "eps_clip", "clip_eps", "clip_ratio_low", "epsilon_low", "clip_range"),
                    "algorithm.epsilon"),
    **dict.fromkeys(("clip_ratio_high", "eps_clip_high", "clip_eps_high"), "algorithm.epsilon_high"),
    **dict.fromkeys(("clip_ratio_c", "eps_clip_c", "c_clip", "dual_clip"),
                    'algorithm.constants, {clip_c = ...}, with algorithm.name = "grpo_dual"'),
    **dict.fromkeys(("importance_sampling_level", "loss_type", "loss_mode", "adv_estimator", "advantage_estimator",
                     "loss_agg_mode"), "algorithm.name"),
    **dict.fromkeys(("norm_adv_by_std_in_grpo", "normalize_advantage"), "algorithm.scale_rewards"),
    "multi_objective_aggregation": 'algorithm.scale_rewards = "gdpo"',
    **dict.fromkeys(("vllm_importance_sampling_correction", "use_tis", "tis_imp_ratio_cap", "rollout_is"),
                    "algorithm.correction"),
    **dict.fromkeys(("off_policy_mask_threshold", "use_opsm", "opsm_delta", "off_policy_sequence_mask_delta"),
                    "algorithm.opsm"),
    **dict.fromkeys(("vllm_importance_sampling_mode", "rollout_importance_sampling_mode"),
                    "algorithm.correction with algorithm.correction_ratio"),
    **dict.fromkeys(("vllm_importance_sampling_cap", "vllm_importance_sampling_clip_max", "rollout_is_threshold"),
                    "algorithm.correction_high"),
    **dict.fromkeys(("router_aux_loss_coef", "aux_loss_coef"), "algorithm.aux_loss"),
    # teacher
    **dict.fromkeys(("teacher_model", "teacher_model_name_or_path", "opd_teacher_load"), "teacher.path"),
    "opd_kl_coef": "teacher.weight",
    # rewards
    **dict.fromkeys(("reward_funcs", "reward_function", "custom_reward_function"), "reward.functions"),
    **dict.fromkeys(("reward_pretrain", "reward_model_path", "reward_model_name_or_path"), "reward_model.path"),
    "reward_weights": "reward.weights",
    **dict.fromkeys(("label_key", "ground_truth_key"), "reward.answer_column"),
    # model
    **dict.fromkeys(("model_name_or_path", "pretrain", "model_path", "base_model", "model_name"), "model.path"),
    **dict.fromkeys(("tokenizer_name_or_path", "tokenizer_path"), "model.tokenizer"),
    "model_revision": "model.revision",
    **dict.fromkeys(("torch_dtype", "param_dtype"), "model.dtype"),
    **dict.fromkeys(("bf16", "fp16", "mixed_precision"), "model.autocast"),
    **dict.fromkeys(("attn_implementation", "flash_attn"), "model.attention"),
    **dict.fromkeys(("use_peft", "lora_r", "lora_rank"), "lora.rank"),
    "lora_alpha": "lora.alpha",
    **dict.fromkeys(("load_in_4bit", "load_in_8bit", "quantization_config"), "model.quantize"),
    **dict.fromkeys(("target_modules", "lora_target_modules"), "lora.targets"),
    "enable_gradient_checkpointing": "train.gradient_checkpointing",
    # data
    **dict.fromkeys(("dataset", "dataset_name", "prompt_data", "train_files", "train_dataset"), "task.source"),
    **dict.fromkeys(("dataset_config", "dataset_kwargs"), "task.config"),
    **dict.fromkeys(("dataset_train_split", "train_split", "prompt_split"), "task.split"),
    **dict.fromkeys(("val_files", "eval_dataset", "eval_prompt_data"), "task.eval_source"),
    **dict.fromkeys(("dataset_test_split", "test_split"), "task.eval_split"),
    **dict.fromkeys(("input_key", "prompt_key"), "task.prompt_column"),
    "max_samples": "task.size",
    "system_prompt": "task.system",
    **dict.fromkeys(("apply_chat_template", "chat_template"), "task.template"),
    **dict.fromkeys(("chat_template_kwargs", "apply_chat_template_kwargs"), "task.template_args"),
    # the run
    **dict.fromkeys(("output_dir", "save_path", "ckpt_path", "default_local_dir", "logging_dir"), "log.dir"),
    **dict.fromkeys(("report_to", "use_wandb", "logger"), "log.trackers"),
    **dict.fromkeys(("wandb_project", "project_name"), "log.project"),
    "log_completions": "log.rollouts",
    **dict.fromkeys(("eval_steps", "eval_strategy", "test_freq", "eval_freq"), "eval.every"),
    **dict.fromkeys(("save_steps", "save_freq", "save_strategy"), "train.save_every"),
    **dict.fromkeys(("save_total_limit", "max_ckpt_num", "max_actor_ckpt_to_keep"), "train.keep_checkpoints"),
    **dict.fromkeys(("load_best_model_at_end", "save_best", "metric_for_best_model"), "train.keep_best"),
    **dict.fromkeys(("resume_from_checkpoint", "resume_mode", "load_checkpoint"), RESUME),
}  # fmt: skip


def all_keys() -> list[str]:
    """Every `section.key`."""
    return [f"{name}.{f.name}" for name, cls in SECTIONS.items() for f in dataclasses.fields(cls)]


def nearest_key(word: str, sign: str = "") -> str:
    """Suggests what an unknown key probably means, as the end of an error: gspo's name for that of another program, or the
    nearest key of the word's own section, else of all sections; "" if none is near.

    `word` may come without a section, or in the style of another command line (`--learning-rate=1`). `sign` is the prefix of
    keys where the word was written, such as `--`.
    """
    section, _, name = word.partition("=")[0].lstrip("-").replace("-", "_").rpartition(".")
    if name in ELSEWHERE:
        return f"; what other programs call {name} is {ELSEWHERE[name]} here"
    every = all_keys()
    for keys in ([key for key in every if key.startswith(f"{section}.")], every):
        names = [key.partition(".")[2] for key in keys]
        if close := difflib.get_close_matches(name[:100], names, 1, 0.7):
            return f", did you mean {sign}{keys[names.index(close[0])]}?"
    return ""
