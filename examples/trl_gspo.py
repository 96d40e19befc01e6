"""TRL's GRPOTrainer with gspo's objective: the paper's GSPO, and its clip counted as the paper counts it.

    pip install trl && pip install -e . && python examples/trl_gspo.py

Runs on a CPU in a minute: a tiny model with random weights learns to write the letter a.
"""

import dataclasses

import torch
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer

from gspo import dropin
from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer, tiny_qwen3_moe

# TRL's settings of the loss that is replaced here.
REPLACED = (
    "beta", "epsilon", "epsilon_high", "delta", "loss_type", "importance_sampling_level", "top_entropy_quantile",
    "off_policy_mask_threshold", "use_liger_kernel", "use_bias_correction_kl", "sapo_temperature_pos",
    "sapo_temperature_neg", "vespo_k_pos", "vespo_k_neg", "vespo_lambda_pos", "vespo_lambda_neg", "entropy_coef",
    "use_adaptive_entropy", "entropy_target", "entropy_coef_delta", "entropy_coef_min", "entropy_coef_max",
)  # fmt: skip
# What TRL gives to models that read images, which this loss does not hand on.
IMAGES = (
    "pixel_values", "image_grid_thw", "num_images", "pixel_attention_mask", "spatial_shapes", "num_tiles", "image_sizes",
    "token_type_ids", "mm_token_type_ids", "image_position_ids",
)  # fmt: skip


class GSPOTrainer(GRPOTrainer):
    """GRPOTrainer whose loss is a row of gspo's table. Set `algorithm` and `settings` to take another one. Raises ValueError
    for settings of GRPOConfig that would have no effect.
    """

    algorithm = "gspo"
    settings: dict = {}

    def __init__(self, model, reward_funcs, args, **more):
        usual = {field.name: field.default for field in dataclasses.fields(GRPOConfig)}
        for name in REPLACED:
            value = getattr(args, name, None)
            if name in usual and value != usual[name] and not (name == "epsilon_high" and value == args.epsilon):
                raise ValueError(f"GRPOConfig.{name} = {value!r}: has no effect on this loss: use GSPOTrainer.settings")
        if args.use_vllm and args.vllm_importance_sampling_correction:
            raise ValueError("set vllm_importance_sampling_correction=False: its weights do not reach this loss")
        if dropin.counts(self.algorithm) == "tokens" and (args.gradient_accumulation_steps > 1 or args.world_size > 1):
            raise ValueError(
                f"GRPOConfig.gradient_accumulation_steps = {args.gradient_accumulation_steps}, in {args.world_size} "
                f"process(es): {self.algorithm} divides by the tokens of the whole update, and a micro-batch does not know "
                "them: set it to 1, and start one process"
            )
        super().__init__(model, reward_funcs, args, **more)

    def _compute_loss(self, model, inputs):
        for name in IMAGES:
            if inputs.get(name) is not None:
                raise ValueError(f"{name}: this loss reads text alone: leave out rows with images, or take a model of text")
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
        seen = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
        logp, entropy, aux_loss = self._get_per_token_logps_and_entropies(
            model, ids, seen, inputs["completion_ids"].size(1), compute_entropy=True, compute_aux_loss=self.aux_loss_enabled
        )
        mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)
        old = inputs.get("old_per_token_logps")
        old = logp.detach() if old is None else old
        # Masked rows count, so that micro-batches weigh the same.
        rows = None if dropin.counts(self.algorithm) == "tokens" else len(mask)
        loss, metrics = dropin.loss(self.algorithm, logp, old, inputs["advantages"], mask, denominator=rows, **self.settings)
        mode = "train" if self.model.training else "eval"
        for name, value in metrics.items():
            self._metrics[mode][name].append(value)
        if mask.any():  # else all completions were cut off and are left out
            self._metrics[mode]["entropy"].append(float(entropy[mask.bool()].mean()))
        if self.aux_loss_enabled:
            loss = loss + self.router_aux_loss_coef * aux_loss
            self._metrics[mode]["aux_loss"].append(float(aux_loss))
        return loss / (self.current_gradient_accumulation_steps if mode == "train" else 1)


def main() -> None:
    """Trains."""
    tiny = build_tiny(
        tiny_qwen3_moe(hidden=64, heads=2, expert_width=64), longest_match_tokenizer([*"0123456789+=? ", *"ab"])
    )
    rows = Dataset.from_list([{"prompt": f"{i}+{j}="} for i in range(8) for j in range(8)])

    def likes_a(completions, **columns):
        return [text.count("a") / max(1, len(text)) for text in completions]

    config = GRPOConfig(
        output_dir="runs/trl-gspo", per_device_train_batch_size=16, num_generations=8, steps_per_generation=4, max_steps=40,
        max_completion_length=8, learning_rate=3e-3, lr_scheduler_type="constant", beta=0.0, router_aux_loss_coef=0.0,
        logging_steps=4, report_to=[], save_strategy="no", use_cpu=True, bf16=False,
    )  # fmt: skip
    trainer = GSPOTrainer(
        model=tiny.model, reward_funcs=likes_a, args=config, train_dataset=rows, processing_class=tiny.tokenizer
    )
    trainer.train()
    rewards = [line["reward"] for line in trainer.state.log_history if "reward" in line]
    clipped = [line["clip_ratio/tokens"] for line in trainer.state.log_history if "clip_ratio/tokens" in line]
    print(f"reward {rewards[0]:.3f} -> {rewards[-1]:.3f}; clipped tokens {sum(clipped) / len(clipped):.1%}")


if __name__ == "__main__":
    main()
