"""Resolves [algorithm] to a row of the table of algorithms. Refuses impossible settings and warns about odd ones."""

from __future__ import annotations

from collections.abc import Iterator

from gspo.config.policy import AlgorithmConfig, ResolvedAlgorithm
from gspo.config.schema import Config, RunConfig
from gspo.config.suggestions import nearest
from gspo.config.values import is_finite
from gspo.objective.algorithms import ALGORITHMS, BOUNDS, WIDEST, Algorithm, correction_level

UNIT = ("gamma", "lam")  # constants from 0 to 1; all others are above 0


def resolve(
    config: AlgorithmConfig, sampling_rounds: int = 0, samples: bool = True, teacher: bool = False
) -> tuple[Algorithm, ResolvedAlgorithm, list[str]]:
    """Returns the algorithm's row, the settings with its defaults filled in, and warnings about odd values. Raises
    ValueError for a setting that would have no effect, or would turn the algorithm into another than its name says.

    Args:
        sampling_rounds: `rollout.dynamic_sampling_rounds`.
        samples: As in `resolved`.
        teacher: Whether a teacher takes part.
    """
    row = ALGORITHMS[config.name]
    _check_clip(row, config)
    scale = config.scale_rewards or row.scale_rewards[0]
    if scale not in row.scale_rewards:
        wrong = f"algorithm.scale_rewards = {scale!r} is no longer {config.name} ({row.source})"
        raise ValueError(f'{wrong}: set {" or ".join(row.scale_rewards)}, or algorithm.name = "grpo" for scaled rewards')
    if config.top_entropy < 1 and config.old_logprobs != "recompute":
        key = f"algorithm.top_entropy = {config.top_entropy:g}"
        raise ValueError(f'{key} reads the entropies of the pass for pi_old: set algorithm.old_logprobs = "recompute"')
    if len(marks := marking(config)) > 1:
        raise ValueError(f"{' and '.join(marks)}: each picks tokens by itself: set one of them and leave out the others")
    bounds = _correction(row, config)
    _check_credit(row, config)
    critic = config.critic or ("shared" if row.critic else "none")
    if bool(row.critic) != (critic != "none"):
        raise ValueError(
            f"algorithm.critic = {critic!r}: {config.name} "
            + ('learns from values and needs a critic: "shared" or "copy"' if row.critic else 'has no use for one: "none"')
        )
    if row.critic and sampling_rounds:
        key = f"rollout.dynamic_sampling_rounds = {sampling_rounds}"
        raise ValueError(f"{key}: {config.name} also learns from groups of equal rewards; set it to 0")
    low, high = (config.epsilon, config.epsilon_high) if config.epsilon is not None else (row.epsilon, row.epsilon_high)
    own = {
        "epsilon": low, "epsilon_high": high, "scale_rewards": scale, "critic": critic,
        "mini_batches": config.mini_batches or row.mini_batches, "constants": _constants(row, config), **bounds,
    }  # fmt: skip
    filled = ResolvedAlgorithm(**vars(config) | own)
    _check_dual(row, filled)
    return row, filled, list(odd_values(row, filled, sampling_rounds, samples, teacher))


def marking(config: AlgorithmConfig) -> list[str]:
    """The settings by which the gradients of single tokens differ, with their values."""
    names = ("top_entropy", "clip_cov", "kl_cov")
    default = AlgorithmConfig()
    return [f"algorithm.{name} = {value:g}" for name in names if (value := getattr(config, name)) != getattr(default, name)]


def _check_clip(row: Algorithm, config: AlgorithmConfig) -> None:
    """Checks that the configured clip range makes sense for this row. Raises ValueError."""
    given = {key: value for key in ("epsilon", "epsilon_high") if (value := getattr(config, key)) is not None}
    key = f"algorithm.epsilon_length = {config.epsilon_length}"
    if config.epsilon_length is not None and (row.level == "token" or row.epsilon is None):
        raise ValueError(f"{key}: {config.name} has no clip range of whole completions or turns: leave it out")
    if config.epsilon_length is not None and config.epsilon == "auto":
        raise ValueError(f'{key}: epsilon = "auto" follows the mean length already: leave one of them out')
    if not given:
        return
    key, value = next(iter(given.items()))
    if row.epsilon is None or row.epsilon_high is None:
        own = f": set algorithm.constants, {dict(row.constants)}" if row.constants else ": leave it out"
        raise ValueError(f"algorithm.{key} = {value!r}: {config.name} has no clip range{own}")
    if config.epsilon == "auto" and config.epsilon_high is not None:
        raise ValueError(f'algorithm.epsilon_high = {config.epsilon_high:g}: epsilon = "auto" sets both ends; leave it out')
    if config.epsilon != "auto" and len(given) == 1:
        # Setting only one end would leave the other at a default that may be orders of magnitude away.
        other = "epsilon_high" if key == "epsilon" else "epsilon"
        raise ValueError(
            f"algorithm.{key} = {value}: set algorithm.{other} too "
            f"({config.name}'s own range is epsilon = {row.epsilon:g}, epsilon_high = {row.epsilon_high:g})"
        )


def _correction(row: Algorithm, config: AlgorithmConfig) -> dict[str, float | None]:
    """The bounds of the correction with its defaults. Raises ValueError if the weights pi_old/mu have nothing to correct."""
    if config.correction == "none":
        return {}
    key = f"algorithm.correction = {config.correction!r}"
    if "logp_mu" in row.likelihoods:
        raise ValueError(f'{key}: {config.name} weighs by pi_theta/mu itself, which would correct twice; set it to "none"')
    if config.old_logprobs != "recompute":
        raise ValueError(
            f"{key} weighs by pi_old/mu, and with algorithm.old_logprobs = {config.old_logprobs!r} pi_old is or may be mu, "
            'so that every weight is 1: set old_logprobs = "recompute"'
        )
    by_token = correction_level(row, config.correction) == "token"
    if by_token and config.correction_ratio != "mean":
        key = f"algorithm.correction_ratio = {config.correction_ratio!r}"
        raise ValueError(f'{key}: {config.name} weighs tokens: leave it out, or set algorithm.correction = "seq_mis"')
    own = BOUNDS[config.correction, "token" if by_token else config.correction_ratio]
    names = ("correction_low", "correction_high")
    return {name: default if getattr(config, name) is None else getattr(config, name) for name, default in zip(names, own)}


def _check_credit(row: Algorithm, config: AlgorithmConfig) -> None:
    """Checks that the loss supports advantages by turn. Raises ValueError."""
    if config.credit == "turn" and not row.by_turn:
        known = ", ".join(name for name, each in ALGORITHMS.items() if each.by_turn)
        raise ValueError(f'algorithm.credit = "turn": {config.name} has one advantage a completion; allowed are {known}')
    if config.credit == "completion" and config.discount != 1:
        raise ValueError(f'algorithm.discount = {config.discount:g} needs algorithm.credit = "turn", not "completion"')


def _constants(row: Algorithm, config: AlgorithmConfig) -> dict[str, float]:
    """The row's constants with the configured overrides. Raises ValueError for unknown names and for values out of range."""
    own = {**row.constants, **row.critic}
    for name, value in config.constants.items():
        if name not in own:
            known = f"its own are {', '.join(own)}" if own else "it has none"
            raise ValueError(f"algorithm.constants: {config.name} has no constant {name!r}; {known}{nearest(name, own)}")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not is_finite(value):
            raise ValueError(f"algorithm.constants: {name} = {value!r}: must be a finite number")
        if not (0 <= value <= 1 if name in UNIT else value > 0):
            raise ValueError(f"algorithm.constants: {name} = {value!r}: must be {'0 to 1' if name in UNIT else 'above 0'}")
    return {**own, **config.constants}


def _check_dual(row: Algorithm, config: ResolvedAlgorithm) -> None:
    """Checks that the dual clip lies beyond the clip range. Raises ValueError."""
    if "clip_c" not in row.constants:
        return
    assert row.epsilon is not None and row.epsilon_high is not None
    value, end, whose = config.constants["clip_c"], config.epsilon_high, "1 + algorithm.epsilon_high"
    if end is None:
        end, whose = WIDEST * row.epsilon_high / row.epsilon, 'as far as epsilon = "auto" may go'
    if value <= 1 + end:
        raise ValueError(
            f"algorithm.constants: clip_c = {value!r}: must be above {1 + end:g} ({whose}): within the clip range it takes "
            f"gradients that the range keeps; raise it ({config.name}'s own is {row.constants['clip_c']:g})"
        )


def odd_values(
    row: Algorithm, config: ResolvedAlgorithm, sampling_rounds: int, samples: bool, teacher: bool
) -> Iterator[str]:
    """Yields warnings about settings that are valid but probably not intended. Arguments as in `resolve`."""
    reach = max((e for e in (config.epsilon, config.epsilon_high) if isinstance(e, float)), default=None)
    never = 0.05 if config.epsilon_length is None else max(0.05, 0.5 / config.epsilon_length**0.5)
    if row.level != "token" and reach is not None and reach > never:
        yield (
            f"clip range {config.epsilon:g}/{config.epsilon_high:g} on a sequence ratio: s_i is a geometric mean over the "
            "completion and seldom differs from 1 by more than a few percent, so this clip hardly acts (the paper's is "
            "3e-4/4e-4)"
        )
    if row.level == "token" and config.epsilon == "auto" and config.clip_target > 0.02:
        yield (
            f'epsilon = "auto" with clip_target = {config.clip_target:g} on token ratios: {config.name} usually clips some '
            "0.1 % of the tokens, so its clip will be far tighter than usual: leave algorithm.epsilon unset for its own "
            f"range, {row.epsilon:g}/{row.epsilon_high:g}, or lower clip_target"
        )
    if row.level == "token" and reach is not None and reach < 5e-3:
        yield (
            f"clip range {config.epsilon:g}/{config.epsilon_high:g} on token ratios: these vary by some 1e-1, so such a "
            f"clip takes away most gradients ({config.name}'s own is {row.epsilon:g}/{row.epsilon_high:g})"
        )
    given = config.epsilon, config.epsilon_high
    others = [
        name
        for name, other in ALGORITHMS.items()
        if other.level == row.level and (other.epsilon, other.epsilon_high) == given
    ]
    if row.level != "token" and others and config.name not in others:
        yield (
            f"clip range {config.epsilon:g}/{config.epsilon_high:g}: is {others[0]}'s own, and {config.name}'s is "
            f"{row.epsilon:g}/{row.epsilon_high:g}: leave it out, unless it is meant (a file from gspo config has it)"
        )
    if config.scale_rewards != row.scale_rewards[0]:
        yield (
            f'scale_rewards = "{config.scale_rewards}": {config.name} divides by the {row.scale_rewards[0]} standard '
            f"deviation ({row.source}); results are not comparable with the paper's"
        )
    if config.mini_batches == 1 and config.epochs == 1:
        yield (
            "mini_batches = 1 and epochs = 1: each batch gives one update, with ratios of 1 unless it is stale, so nothing "
            "is clipped" + (", and kl_cov penalises nothing" if config.kl_cov else "")
        )
    reads = config.correction != "none" or marking(config) or teacher  # a teacher's advantage is log pi_T - log pi_old
    unread = "logp_old" not in row.likelihoods and not reads
    if config.old_logprobs == "recompute" and unread:
        why = "divides by mu alone" if row.likelihoods else "has no ratio"
        yield f'old_logprobs = "recompute": {config.name} {why}, so the pass for pi_old changes no gradient, only metrics'
    if row.drops_equal and samples and not sampling_rounds:
        yield (
            f"{config.name} refills groups whose rewards are all equal with new prompts; with "
            "rollout.dynamic_sampling_rounds = 0 they are only dropped, so updates have fewer groups than usual"
        )
    if config.beta > 0 and config.kl_estimator == "k1":
        yield 'kl_estimator = "k1" as a loss has zero gradient on average: use k2 or k3 to hold the policy back'


def resolved(config: Config, samples: bool = True) -> tuple[RunConfig, list[str]]:
    """The configuration with the algorithm's defaults filled in, and warnings. Raises ValueError. `samples`: whether the run
    samples `rollout.num_prompts` per step itself; served runs take what agents submit.
    """
    teacher = bool(config.teacher.path)
    _, algorithm, warnings = resolve(config.algorithm, config.rollout.dynamic_sampling_rounds, samples, teacher)
    prompts = config.rollout.num_prompts
    if samples and prompts % algorithm.mini_batches:
        fits = [str(n) for n in range(1, min(prompts, algorithm.mini_batches) + 1) if prompts % n == 0]
        raise ValueError(
            f"rollout.num_prompts = {prompts} cannot be split into algorithm.mini_batches = "
            f"{algorithm.mini_batches} equal updates: make it a multiple of {algorithm.mini_batches}, or set "
            f"algorithm.mini_batches to {' or '.join(fits)}"
        )
    updates = config.train.steps * algorithm.mini_batches * algorithm.epochs
    if samples and config.optimizer.warmup > updates:
        warnings.append(f"optimizer.warmup = {config.optimizer.warmup}: the run ends before, with {updates} updates")
    return RunConfig(**vars(config) | {"algorithm": algorithm}), warnings
