"""The limit on open files of this process: each completion that an engine samples takes a connection."""

from __future__ import annotations

import math
import resource

from gspo.config.rollout import SamplerConfig

FILES = resource.RLIMIT_NOFILE
SPARE = 256  # open files beside those connections


def allow_connections(given: SamplerConfig) -> None:
    """Raises the soft limit on open files to what the engines take, as far as the hard limit allows. Raises ValueError if
    that is too low.
    """
    requests = (len(given.urls) or given.engines) * given.batch_size
    limits = resource.getrlimit(FILES)
    soft, hard = (math.inf if limit == resource.RLIM_INFINITY else limit for limit in limits)
    if hard < requests + SPARE:
        raise ValueError(
            f"sampler.batch_size = {given.batch_size}: with all engines this takes {requests + SPARE} open files, and this "
            f"process may have {hard}: raise the hard limit (ulimit -Hn), or lower sampler.batch_size"
        )
    wanted = min(hard, 2 * requests + SPARE)  # a request that takes long asks for /metrics over a second connection
    if soft < wanted:
        resource.setrlimit(FILES, (int(wanted), limits[1]))
