"""pi_old: what the policy that sampled says of its rollouts, its likelihoods and its experts, and how sure that is."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Mapping, Sequence
from typing import Any

import torch

from gspo.config.policy import AlgorithmConfig
from gspo.learner import layout
from gspo.learner.layout import split
from gspo.learner.learner import Learner
from gspo.objective.clip_range import NUMERICS
from gspo.objective.completions import Completions
from gspo.objective.losses import level_ratio
from gspo.objective.mismatch import mismatch, std
from gspo.objective.ppo import gae, whiten
from gspo.objective.routing import changed
from gspo.ports import Policy
from gspo.training.state import Metrics, Run
from gspo.types import Completion, Seen, Stats

Groups = list[list[Completion]]
PROBED = 32  # completions that the mismatch is measured on where no full pass is at hand


def needs_pass(config: AlgorithmConfig) -> bool:
    """Whether pi_old takes a forward pass of its own, before the first update of a step."""
    return config.old_logprobs == "recompute" or config.router_replay == "R2"


def recall(
    learner: Learner, groups: Groups, config: AlgorithmConfig, unread: Container[int] = ()
) -> tuple[Groups, list[Completion], list[Seen]]:
    """The completions with what the trainer's policy, not yet updated, says of them; those that updates read, and what it
    said.

    Its likelihoods become pi_old's where old_logprobs = "recompute"; its experts do, unless R3 keeps the sampler's. unread:
    ids of completions that no update reads.
    """
    completions = [completion for group in groups for completion in group]
    read = [completion for completion in completions if id(completion) not in unread]
    replays = config.router_replay == "R3"
    found = dict(zip(map(id, read), learner.read(learner.policy, read, routing=learner.policy.sparse, replay=replays)))

    def filled(completion: Completion) -> Completion:
        seen = found.get(id(completion))
        if seen is None:
            return completion
        logp_old = seen.logp if config.old_logprobs == "recompute" else completion.logp_old
        return dataclasses.replace(completion, logp_old=logp_old, routes=completion.routes if replays else seen.routes)

    return (
        [[filled(completion) for completion in group] for group in groups],
        read,
        [found[id(completion)] for completion in read],
    )


def estimate(learner: Learner, groups: Groups, critic: Mapping[str, float], scale: str) -> Groups:
    """The completions with advantages by token and returns from the critic, as it is before the first update (PPO).

    scale: "batch" whitens the advantages over all tokens of the batch, "none" leaves them.
    """
    completions = [completion for group in groups for completion in group]
    values = [one.values for one in learner.read(learner.policy, completions)]
    assert all(value is not None for value in values), "build/assemble.py gives the policy a critic"
    y = Completions.of(torch.tensor([len(completion.logp_old) for completion in completions]))
    flat = torch.cat(values)  # type: ignore[arg-type]
    rewards = torch.tensor([completion.reward for completion in completions])
    A, returns = gae(rewards, flat, y, critic["gamma"], critic["lam"])
    A = whiten(A) if scale == "batch" else A
    parts = zip(*(x.split(y.length.tolist()) for x in (A, flat, returns)))
    return [
        [dataclasses.replace(completion, advantage=a, values=v, returns=r) for completion, (a, v, r) in zip(group, parts)]
        for group in groups
    ]


def probe(learner: Learner, completions: Sequence[Completion]) -> tuple[list[Completion], list[Seen]]:
    """Some of these completions, which the policy's present weights sampled, and what it says of them."""
    some = list(completions[:: max(1, len(completions) // PROBED)])
    return some, learner.read(learner.policy, some, routing=learner.policy.sparse)


def paired(completions: Sequence[Completion], seen: Sequence[Seen]) -> tuple[torch.Tensor, torch.Tensor, Completions]:
    """What the policy and the sampler say of the same tokens, log pi and log mu [N], and whose tokens they are."""
    y = Completions.of(
        torch.tensor([len(one.logp) for one in seen]), torch.cat([layout.turns(completion) for completion in completions])
    )
    return torch.cat([one.logp for one in seen]), torch.cat([completion.logp_mu for completion in completions]), y


def noise_ratio(logp: torch.Tensor, logp_mu: torch.Tensor, y: Completions, level: str) -> torch.Tensor:
    """The ratio to mu at this level, of completions that the policy's present weights sampled: numerics alone."""
    return level_ratio(level, logp, logp_mu, y)


def disagreement(completions: Sequence[Completion], seen: Sequence[Seen]) -> dict[str, Any]:
    """Metrics of how far the sampler and the trainer at the same weights disagree: likelihoods, and experts.

    moe/sampler_agreement: share of the sampler's choices of experts that the trainer makes too, of the tokens that the
    sampled ones were predicted from.
    """
    found: dict[str, Any] = mismatch(*paired(completions, seen))
    if all(one.routes is not None and completion.routes is not None for completion, one in zip(completions, seen)):
        shares = [changed(completion.routes, one.routes)[before(completion)] for completion, one in zip(completions, seen)]  # type: ignore[arg-type]
        found["moe/sampler_agreement"] = 1 - float(torch.cat(shares).mean())
    return found


def before(completion: Completion) -> torch.Tensor:
    """The places of the tokens that the sampled ones were predicted from."""
    return layout.parents(completion)[completion.sampled]


def unread(run: Run, groups: Groups, mini_batches: int) -> set[int]:
    """Ids of the completions that no update reads: idle ones, beside others that are not."""
    found = set()
    for part in split(groups, mini_batches):
        idle = {id(completion) for completion in part if run.objective.idle(completion)}
        found |= idle if len(idle) < len(part) else set()
    return found


def decided(run: Run, known: Sequence[Completion]) -> AlgorithmConfig:
    """The algorithm, with old_logprobs = "auto" settled by the first batch, once for the run. known: completions of the
    present weights.
    """
    algorithm = run.config.algorithm
    if algorithm.old_logprobs != "auto":
        return algorithm
    if not run.old_logprobs:
        logp, logp_mu, y = paired(*probe(run.learner, known))
        share = run.objective.numerics(logp, logp_mu, y, torch.tensor([-1.0, 1.0]))
        run.old_logprobs = "recompute" if share > NUMERICS and "logp_old" in run.objective.row.likelihoods else "sampler"
        noise = std(noise_ratio(logp, logp_mu, y, run.objective.row.level))
        clip = "" if run.objective.clip is None else ", the clip range is {:.1e}/{:.1e}".format(*run.objective.clip)
        run.log.event(
            "info",
            f'algorithm.old_logprobs = "auto" is "{run.old_logprobs}" in this run: the noise floor of the ratio is '
            f"{noise:.1e}{clip}, and numerics alone would clip {share:.1%} of the tokens ({NUMERICS:.0%} is tolerated)",
        )
    return dataclasses.replace(algorithm, old_logprobs=run.old_logprobs)


def refer(run: Run, groups: Groups, reference: Policy) -> Groups:
    """The same completions with their log-probabilities under the reference."""
    with reference.awake():
        seen = iter(run.learner.read(reference, [completion for group in groups for completion in group]))
    return [[dataclasses.replace(completion, logp_ref=next(seen).logp) for completion in group] for group in groups]


def first_look(stats: Stats) -> Metrics:
    """The mismatch of sampler and trainer, from an update whose completions the same weights sampled."""
    found: Metrics = mismatch(stats["logp"], stats["logp_mu"], Completions.of(stats["length"]))
    differ = stats.get("overruled", stats.get("changed"))  # replaying the sampler's experts, the routers' own show it
    if differ is not None:
        found["moe/sampler_agreement"] = 1 - float(differ.mean())
    return found


def floor(run: Run, noise: float) -> None:
    """A warning where the ratio's own noise reaches the clip range."""
    reach = min(run.objective.clip or (float("inf"),))
    if noise >= reach and run.objective.row.level != "token" and run.objective.auto is None:
        recomputed = "recompute" in (run.config.algorithm.old_logprobs, run.old_logprobs)
        remedy = "" if recomputed else 'set algorithm.old_logprobs = "recompute", '
        run.log.warn(
            f"the noise floor of the ratio ({noise:.1e}) reaches the clip range ({reach:.1e}): rounding decides what is "
            f"clipped. Widen algorithm.epsilon and epsilon_high, {remedy}or use higher precision"
        )
