"""pi_old: what the policy that sampled says of its rollouts, its likelihoods and its experts, and how sure that is."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Mapping, Sequence
from typing import Any

import torch

from gspo.config.policy import AlgorithmConfig
from gspo.learner import layout
from gspo.learner.learner import Learner
from gspo.objective.losses import level_ratio
from gspo.objective.mismatch import mismatch
from gspo.objective.ppo import gae, whiten
from gspo.objective.replies import Replies
from gspo.objective.routing import changed
from gspo.types import Reply, Seen

Groups = list[list[Reply]]
PROBED = 32  # replies that the mismatch is measured on where no full pass is at hand


def needs_pass(config: AlgorithmConfig) -> bool:
    """Whether pi_old takes a forward pass of its own, before the first update of a step."""
    return config.old_logprobs == "recompute" or config.router_replay == "R2"


def recall(
    learner: Learner, groups: Groups, config: AlgorithmConfig, unread: Container[int] = ()
) -> tuple[Groups, list[Reply], list[Seen]]:
    """The replies with what the trainer's policy, not yet updated, says of them; those that updates read, and what it said.

    Its likelihoods become pi_old's where old_logprobs = "recompute"; its experts do, unless R3 keeps the sampler's. unread:
    ids of replies that no update reads.
    """
    replies = [reply for group in groups for reply in group]
    read = [reply for reply in replies if id(reply) not in unread]
    replays = config.router_replay == "R3"
    found = dict(zip(map(id, read), learner.read(learner.policy, read, routing=learner.policy.sparse, replay=replays)))

    def filled(reply: Reply) -> Reply:
        seen = found.get(id(reply))
        if seen is None:
            return reply
        logp_old = seen.logp if config.old_logprobs == "recompute" else reply.logp_old
        return dataclasses.replace(reply, logp_old=logp_old, routes=reply.routes if replays else seen.routes)

    return [[filled(reply) for reply in group] for group in groups], read, [found[id(reply)] for reply in read]


def estimate(learner: Learner, groups: Groups, critic: Mapping[str, float], scale: str) -> Groups:
    """The replies with advantages by token and returns from the critic, as it is before the first update (PPO).

    scale: "batch" whitens the advantages over all tokens of the batch, "none" leaves them.
    """
    replies = [reply for group in groups for reply in group]
    values = [one.values for one in learner.read(learner.policy, replies)]
    assert all(value is not None for value in values), "build.py gives the policy a critic"
    y = Replies.of(torch.tensor([len(reply.logp_old) for reply in replies]))
    flat = torch.cat(values)  # type: ignore[arg-type]
    rewards = torch.tensor([reply.reward for reply in replies])
    A, returns = gae(rewards, flat, y, critic["gamma"], critic["lam"])
    A = whiten(A) if scale == "batch" else A
    parts = zip(*(x.split(y.length.tolist()) for x in (A, flat, returns)))
    return [
        [dataclasses.replace(reply, advantage=a, values=v, returns=r) for reply, (a, v, r) in zip(group, parts)]
        for group in groups
    ]


def probe(learner: Learner, replies: Sequence[Reply]) -> tuple[list[Reply], list[Seen]]:
    """Some of these replies, which the policy's present weights sampled, and what it says of them."""
    some = list(replies[:: max(1, len(replies) // PROBED)])
    return some, learner.read(learner.policy, some, routing=learner.policy.sparse)


def paired(replies: Sequence[Reply], seen: Sequence[Seen]) -> tuple[torch.Tensor, torch.Tensor, Replies]:
    """What the policy and the sampler say of the same tokens, log pi and log mu [N], and whose tokens they are."""
    y = Replies.of(torch.tensor([len(one.logp) for one in seen]), torch.cat([layout.turns(reply) for reply in replies]))
    return torch.cat([one.logp for one in seen]), torch.cat([reply.logp_mu for reply in replies]), y


def noise_ratio(logp: torch.Tensor, logp_mu: torch.Tensor, y: Replies, level: str) -> torch.Tensor:
    """The ratio to mu at this level, of replies that the policy's present weights sampled: numerics alone."""
    return level_ratio(level, logp, logp_mu, y)


def disagreement(replies: Sequence[Reply], seen: Sequence[Seen]) -> dict[str, Any]:
    """Metrics of how far the sampler and the trainer at the same weights disagree: likelihoods, and experts.

    moe/sampler_agreement: share of the sampler's choices of experts that the trainer makes too, of the tokens that the
    sampled ones were predicted from.
    """
    found: dict[str, Any] = mismatch(*paired(replies, seen))
    if all(one.routes is not None and reply.routes is not None for reply, one in zip(replies, seen)):
        shares = [changed(reply.routes, one.routes)[before(reply)] for reply, one in zip(replies, seen)]  # type: ignore[arg-type]
        found["moe/sampler_agreement"] = 1 - float(torch.cat(shares).mean())
    return found


def before(reply: Reply) -> torch.Tensor:
    """The places of the tokens that the sampled ones were predicted from."""
    return layout.parents(reply)[reply.sampled]
