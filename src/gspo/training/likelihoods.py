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
from gspo.objective.losses import level_ratio
from gspo.objective.mismatch import mismatch, std
from gspo.objective.ppo import gae, whiten
from gspo.objective.replies import Replies
from gspo.objective.routing import changed
from gspo.ports import Policy
from gspo.training.state import Metrics, Run
from gspo.types import Reply, Seen, Stats

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
    assert all(value is not None for value in values), "build/assemble.py gives the policy a critic"
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


def unread(run: Run, groups: Groups, mini_batches: int) -> set[int]:
    """Ids of the replies that no update reads: idle ones, beside others that are not."""
    found = set()
    for part in split(groups, mini_batches):
        idle = {id(reply) for reply in part if run.objective.idle(reply)}
        found |= idle if len(idle) < len(part) else set()
    return found


def decided(run: Run, known: Sequence[Reply]) -> AlgorithmConfig:
    """The algorithm, with old_logprobs = "auto" settled by the first batch, once for the run. known: replies of the present
    weights.
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
    """The same replies with their log-probabilities under the reference."""
    with reference.awake():
        seen = iter(run.learner.read(reference, [reply for group in groups for reply in group]))
    return [[dataclasses.replace(reply, logp_ref=next(seen).logp) for reply in group] for group in groups]


def first_look(stats: Stats) -> Metrics:
    """The mismatch of sampler and trainer, from an update whose replies the same weights sampled."""
    found: Metrics = mismatch(stats["logp"], stats["logp_mu"], Replies.of(stats["length"]))
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
