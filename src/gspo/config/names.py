"""Names of settings: those of gspo, and what other programs call the same settings."""

from __future__ import annotations

import dataclasses
import difflib

from gspo.config.schema import SECTIONS

RESUME = "--resume (from Python: resume=True)"
"""How to resume a run, for messages that appear both on the command line and from Python."""
OF_OTHERS = {
    # optimizer
    "optimizer.lr": "learning_rate actor_learning_rate",
    "optimizer.schedule": "lr_scheduler_type lr_scheduler lr_warmup_style warmup_style",
    "optimizer.warmup, in updates":
        "warmup_steps lr_warmup_steps num_warmup_steps warmup_ratio lr_warmup_ratio lr_warmup_steps_ratio",
    "optimizer.min_lr": "min_lr_ratio min_lr_rate",
    "optimizer.beta1 and optimizer.beta2": "adam_beta1 adam_beta2 adam_betas betas",
    "optimizer.eps": "adam_epsilon",
    "optimizer.name": "optim optimizer_type use_8bit_adam",
    "optimizer.max_grad_norm": "grad_clip clip_grad max_norm",
    # how much a step and an update hold
    "rollout.num_prompts and rollout.num_generations, whose product is the completions of a step":
        "per_device_train_batch_size train_batch_size rollout_batch_size gen_batch_size global_batch_size "
        "generation_batch_size",
    "train.micro_batch_tokens, in tokens":
        "gradient_accumulation_steps micro_train_batch_size ppo_micro_batch_size ppo_micro_batch_size_per_gpu "
        "ppo_max_token_len_per_gpu max_tokens_per_gpu log_prob_micro_batch_size_per_gpu",
    "sampler.batch_size": "micro_rollout_batch_size max_num_seqs per_device_eval_batch_size",
    "algorithm.mini_batches, the number of updates that a batch is split into":
        "steps_per_generation ppo_mini_batch_size num_ppo_mini_batches ppo_minibatch_size",
    "algorithm.epochs": "num_iterations ppo_epochs max_epochs num_ppo_epochs update_epochs",
    "train.steps, in rollout batches": "num_train_epochs total_epochs num_episodes max_steps total_training_steps num_steps",
    # sampling
    "rollout.num_generations": "n_samples_per_prompt num_return_sequences group_size rollout_n n",
    "rollout.max_completion_length": "max_new_tokens max_response_length generate_max_len response_length max_tokens",
    "task.too_long, for prompts that leave no room for the longest completion":
        "max_prompt_length prompt_max_len filter_overlong_prompts truncation",
    "rollout.dynamic_sampling_rounds": "dynamic_sampling filter_groups dynamic_filtering",
    "rollout.overlong_buffer": "overlong_buffer.len",
    'sampler.engine = "vllm"': "use_vllm vllm_mode rollout.name",
    "sampler.urls": "vllm_server_base_url",
    "a name in sampler.engine_args":
        "vllm_gpu_memory_utilization gpu_memory_utilization tensor_parallel_size tensor_model_parallel_size "
        "vllm_tensor_parallel_size enforce_eager max_model_len vllm_max_model_length max_num_batched_tokens",
    # algorithm
    "algorithm.beta": "kl_coef init_kl_coef kl_loss_coef kl_penalty_coef use_kl_loss",
    "algorithm.kl_estimator": "kl_loss_type",
    "algorithm.epsilon": "clip_ratio cliprange eps_clip clip_eps clip_ratio_low epsilon_low clip_range",
    "algorithm.epsilon_high": "clip_ratio_high eps_clip_high clip_eps_high",
    'algorithm.constants, {clip_c = ...}, with algorithm.name = "grpo_dual"':
        "clip_ratio_c eps_clip_c c_clip dual_clip delta",
    "algorithm.name": "importance_sampling_level loss_type loss_mode adv_estimator advantage_estimator loss_agg_mode",
    "algorithm.scale_rewards": "norm_adv_by_std_in_grpo normalize_advantage",
    'algorithm.scale_rewards = "gdpo"': "multi_objective_aggregation",
    "algorithm.correction": "vllm_importance_sampling_correction use_tis tis_imp_ratio_cap rollout_is",
    "algorithm.opsm": "off_policy_mask_threshold use_opsm opsm_delta off_policy_sequence_mask_delta",
    "algorithm.correction with algorithm.correction_ratio": "vllm_importance_sampling_mode rollout_importance_sampling_mode",
    "algorithm.correction_high": "vllm_importance_sampling_cap vllm_importance_sampling_clip_max rollout_is_threshold",
    "algorithm.entropy_bonus": "entropy_coeff entropy_coef entropy_loss_coef",
    "algorithm.top_entropy": "top_entropy_quantile",
    "algorithm.clip_cov": "clip_cov_ratio",
    "algorithm.kl_cov": "kl_cov_ratio",
    "algorithm.kl_cov_weight": "ppo_kl_coef",
    "algorithm.aux_loss": "router_aux_loss_coef aux_loss_coef",
    "algorithm.old_logprobs": "bypass_mode",
    "algorithm.router_replay": "router_replay.mode",
    "scale.ranks": "n_gpus_per_node nnodes",
    # teacher
    "teacher.path": "teacher_model teacher_model_name_or_path opd_teacher_load",
    "teacher.url": "teacher_model_server_url",
    "teacher.weight": "opd_kl_coef",
    # rewards
    "reward.functions": "reward_funcs reward_function custom_reward_function",
    "reward_model.path": "reward_pretrain reward_model_path reward_model_name_or_path",
    "reward.weights": "reward_weights",
    "reward.answer_column": "label_key ground_truth_key",
    # model
    "model.path": "model_name_or_path pretrain model_path base_model model_name",
    "model.tokenizer": "tokenizer_name_or_path tokenizer_path",
    "model.revision": "model_revision",
    "model.dtype": "torch_dtype param_dtype",
    "model.autocast": "bf16 fp16 mixed_precision",
    "model.attention": "attn_implementation flash_attn",
    "lora.rank": "use_peft lora_r lora.r lora_rank",
    "lora.alpha": "lora_alpha",
    "model.quantize": "load_in_4bit load_in_8bit quantization_config",
    "lora.targets": "target_modules lora_target_modules",
    "train.gradient_checkpointing": "enable_gradient_checkpointing",
    # data
    "task.source": "dataset dataset_name prompt_data train_files train_dataset task.data",
    "task.config": "dataset_config dataset_kwargs",
    "task.split": "dataset_train_split train_split prompt_split",
    "task.eval_source": "val_files eval_dataset eval_prompt_data",
    "task.eval_split": "dataset_test_split test_split",
    "task.prompt_column": "input_key prompt_key",
    "task.size": "max_samples",
    "task.system": "system_prompt",
    "task.template": "apply_chat_template chat_template",
    "task.template_args": "chat_template_kwargs apply_chat_template_kwargs",
    # the run
    "train.seed, and task.seed for the order of the prompts": "seed",
    "log.dir": "output_dir save_path ckpt_path default_local_dir logging_dir run_name experiment_name",
    "log.trackers": "report_to use_wandb logger",
    "log.project": "wandb_project project_name",
    "log.rollouts": "log_completions",
    "eval.num_generations": "val_kwargs.n",
    "eval.every": "eval_steps eval_strategy test_freq eval_freq",
    "train.save_every": "save_steps save_freq save_strategy",
    "train.keep_checkpoints": "save_total_limit max_ckpt_num max_actor_ckpt_to_keep",
    "train.keep_best": "load_best_model_at_end save_best metric_for_best_model",
    RESUME: "resume_from_checkpoint resume_mode load_checkpoint",
}  # fmt: skip
"""Our key, with a note if it counts something else, and the names that other programs have for it, if they are not ours."""
ELSEWHERE = {theirs: ours for ours, names in OF_OTHERS.items() for theirs in names.split()}


def all_keys() -> list[str]:
    """Every `section.key`."""
    return [f"{name}.{f.name}" for name, cls in SECTIONS.items() for f in dataclasses.fields(cls)]


def nearest_key(word: str, sign: str = "") -> str:
    """Suggests what an unknown key probably means, as the end of an error: gspo's name for that of another program, or the
    nearest key of its section, else of all; "" if none is near. `word` may come without a section, or in the style of
    another command line. `sign`: prefix of keys where it was written, such as `--`.
    """
    parts = word.partition("=")[0].lstrip("-").replace("-", "_").split(".")
    words = [".".join(parts[-2:]), *reversed(parts)]
    theirs = [f"; what other programs call {name} is {ELSEWHERE[name]} here" if name in ELSEWHERE else "" for name in words]
    near = " or ".join(f"{sign}{key}" for key in _similar(".".join(parts[:-1]), parts[-1]))
    return next(filter(None, (*theirs[:2], near and f", did you mean {near}?", *theirs[2:])), "")


def _similar(section: str, name: str) -> list[str]:
    """The key of a similar name; in a section of another program, one or two keys of the same name. [] if there is none."""
    keys = all_keys()
    if section and section not in SECTIONS:
        same = [key for key in keys if key.endswith(f".{name}")]
        return same if len(same) < 3 else []
    every = {key.partition(".")[2]: key for key in reversed(keys)}
    own = {key.partition(".")[2]: key for key in keys if key.startswith(f"{section}.")}
    close = [
        names[near]
        for names, least in ((own, 0.7), (every, 0.8))
        for near in difflib.get_close_matches(name[:100], names, 1, least)
    ]
    return close[:1]
