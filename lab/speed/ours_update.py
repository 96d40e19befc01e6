"""The forward and backward pass of one update by gspo, as a worker for update_trl.py (see paired.py)."""

from __future__ import annotations

import argparse
import dataclasses
import time

from paired import Commands, update_options


def serve(commands: Commands, options: argparse.Namespace) -> None:
    """Does the passes of one update a command, with GSPO's loss and the statistics that a step logs."""
    import torch
    from chain import gradients
    from update import completions

    from gspo.backends.hf.load import load_model
    from gspo.backends.hf.policy import HFPolicy
    from gspo.config.algorithm import resolve
    from gspo.config.policy import AlgorithmConfig, ModelConfig
    from gspo.learner import layout
    from gspo.learner.objective import PolicyObjective

    torch.set_num_threads(options.threads)
    policy = HFPolicy(load_model(ModelConfig(path=options.model, device="cpu")), layout="auto")
    objective = PolicyObjective(*resolve(AlgorithmConfig(name="gspo"))[:2], options.shape[1])
    rows = completions(*options.shape)
    for i, part in enumerate(
        layout.build([completion], False) for completion in rows
    ):  # pi_old is the policy: nothing is clipped
        with torch.no_grad():
            logp = policy.forward(part).logp
        rows[i] = dataclasses.replace(rows[i], logp_old=logp, logp_mu=logp)
    parameters = list(policy.parameters())
    while commands.wait():
        begin = time.perf_counter()
        for part in layout.micro_batches(rows, options.budget, policy.shares_prompts):
            batch = layout.build([rows[i] for i in part], policy.shares_prompts)
            terms, _ = objective.terms(policy.forward(batch, entropy=True, routing=True), batch)
            (terms.sum() / objective.denominator(rows)).backward()
        seconds = time.perf_counter() - begin
        gradient = gradients(policy.model.model)
        for parameter in parameters:
            parameter.grad = None
        commands.answer({"seconds": seconds, "gradients": gradient})


def main() -> None:
    """Serve updates."""
    parser = update_options(__doc__)
    parser.add_argument("--budget", type=int, default=16384, help="train.micro_batch_tokens")
    options = parser.parse_args()
    serve(Commands(), options)


if __name__ == "__main__":
    main()
