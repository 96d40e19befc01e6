"""vLLM as the sampler: token ids in and out, the engine's own likelihoods, weights swapped in place."""

from __future__ import annotations

import asyncio
import importlib.util
import math
import shutil
import tempfile
import warnings
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from gspo import layout
from gspo.backends.hf_model import HFModel
from gspo.backends.hf_policy import HFPolicy
from gspo.backends.stopping import cut, decode
from gspo.backends.vllm_server import EngineError, Server, http, serving
from gspo.config import Config, SamplerConfig
from gspo.ports import Policy
from gspo.types import Prompt, Reply, Rollout, Sampling

WEIGHTS = "weights"  # the folder of the exchange that holds them
GENERATE = "/inference/v1/generate"
STARTS = 3  # tries, each with a server started anew, before a batch is given up
PROBES, PROBE_TOKENS = 4, 16
# Mean |log mu - log pi| of the probes: always accepted, and never.
FINE = {torch.float32: 1e-4, torch.bfloat16: 0.03, torch.float16: 5e-3}
WRONG = {torch.float32: 1e-3, torch.bfloat16: 0.15, torch.float16: 0.03}
WORSE = 5.0  # in between: times the largest gap so far, since it grows as a model sharpens


def check_sampler(given: SamplerConfig) -> None:
    """Raises ValueError where vLLM cannot be reached with these settings, before anything is started."""
    http()
    if given.exchange is not None and not Path(given.exchange).is_dir():
        raise ValueError(f"sampler.exchange = {given.exchange!r}: no such folder")
    if given.url is None and given.python is None and importlib.util.find_spec("vllm") is None:
        raise ValueError(
            "vLLM is not installed here: install it into an environment of its own, and name its interpreter as "
            "sampler.python, or a server that runs already as sampler.url"
        )
    if given.python is not None and shutil.which(given.python) is None:
        raise ValueError(f"sampler.python = {given.python!r}: no such program")


@contextmanager
def opened(config: Config, policy: HFPolicy, keep: Path | None) -> Iterator[VLLMSampler]:
    """The sampler of a run: a server started, or the one at sampler.url, with the policy's weights, proven. Ends with it.
    keep: the folder that gets the server's output in the end, if it is there by then.

    Raises ValueError for what the user can mend, with the remedy.
    """
    given, model = config.sampler, policy.model
    check_sampler(given)
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(prefix="gspo-", dir=given.exchange or memory) as scratch:
        exchange = Path(scratch)
        policy.save(str(exchange / WEIGHTS))
        if given.url:
            server = Server(given.url)
            server.check()
        else:
            dtype = str(model.compute_dtype).removeprefix("torch.")
            server = serving(exchange / WEIGHTS, given.python, dtype, given.engine_args, exchange / "vllm.log")
        sampler = VLLMSampler(
            model, server, exchange, config.rollout.temperature, given.batch_size, given.timeout, warnings.warn
        )
        try:
            server.start()
            sampler.load(policy, 0)
            yield sampler
        finally:
            server.stop()
            if server.log and server.log.exists() and keep is not None and keep.is_dir():
                shutil.copy(server.log, keep)


class VLLMSampler:
    """Samples through a vLLM server. `load` swaps its weights and proves by a few sampled tokens that it holds the policy's.

    model: whose tokenizer and limits the prompts have. exchange: a folder that the server reads too. batch_size: replies
    asked for at once. timeout: seconds that a reply may take. tell: hears of a server that had to be started again.
    """

    def __init__(
        self, model: HFModel, server: Server, exchange: Path, temperature: float, batch_size: int = 256,
        timeout: float = 600.0, tell: Callable[[str], None] = lambda text: None,
    ) -> None:  # fmt: skip
        self.model, self.server, self.exchange = model, server, exchange
        self.temperature, self.batch_size, self.timeout, self.tell = temperature, batch_size, timeout, tell
        self.version = 0
        self.gap = 0.0  # largest mean |log mu - log pi| of the checks so far

    def load(self, policy: Policy, version: int) -> None:
        """Takes over the policy's weights and version. Raises EngineError where the engine then has others."""
        self.version = version
        folder = self.exchange / WEIGHTS
        policy.save(str(folder))
        self._swap(folder, version)
        self.check(policy)

    def _swap(self, folder: Path, version: int) -> None:
        try:
            self.server.swap(folder, version)
        except EngineError as error:
            self._restart(error)
            self.server.swap(folder, version)

    def _restart(self, error: EngineError) -> None:
        if self.server.command is None:
            raise error
        self.tell(f"the vLLM server is started again: {error}")
        self.server.start()

    def check(self, policy: Policy) -> float:
        """Mean |log mu - log pi| of a few tokens sampled now. Raises EngineError where it is too large: the engine holds
        other weights than the policy, stale or corrupt ones.
        """
        g = torch.Generator().manual_seed(0)
        size = self.model.config.vocab_size
        prompts = [Prompt(f"probe {i}", "", tuple(torch.randint(size, (8,), generator=g).tolist())) for i in range(PROBES)]
        rollouts = self.generate(prompts, 1, Sampling(PROBE_TOKENS, self.temperature, seed=self.version))
        replies = [Reply(r.tokens, r.sampled, r.logp[r.sampled], r.logp[r.sampled], 0.0) for r in rollouts]
        with torch.no_grad():
            logp = policy.forward(layout.build(replies, policy.shares_prompts)).logp.cpu()
        gap = float((logp - torch.cat([reply.logp_mu for reply in replies])).abs().mean())
        dtype = self.model.compute_dtype
        limit = min(WRONG[dtype], max(FINE[dtype], WORSE * self.gap)) if self.gap else WRONG[dtype]
        if not gap <= limit:
            raise EngineError(
                f"vLLM and the trainer disagree about version {self.version} of the weights: the log-probabilities of "
                f"{len(logp)} tokens differ by {gap:.2g} on average, above {limit:.2g}. Its weights are stale or corrupt, "
                "or it serves another model"
            )
        self.gap = max(gap, self.gap)
        return gap

    def generate(
        self, prompts: Sequence[Prompt], n: int, sampling: Sampling, progress: Callable[[int], None] | None = None
    ) -> list[Rollout]:  # fmt: skip
        """`n` replies to each prompt, in the order of the prompts. A server of ours that fails is started again with the
        same weights, and only the replies that are missing are asked for.
        """
        done: dict[int, Rollout] = {}
        wanted = [(prompt, _seed(sampling.seed, i, j)) for i, prompt in enumerate(prompts) for j in range(n)]
        for tries in range(1, STARTS + 1):
            try:
                _run(self._ask_all(wanted, sampling, done, progress))
                break
            except EngineError as error:
                if tries == STARTS:
                    raise
                self._restart(error)
                self.server.swap(self.exchange / WEIGHTS, self.version)
        return [done[i] for i in range(len(wanted))]

    async def _ask_all(
        self, wanted: Sequence[tuple[Prompt, int]], sampling: Sampling, done: dict[int, Rollout],
        progress: Callable[[int], None] | None,
    ) -> None:  # fmt: skip
        """Fills `done`. Raises EngineError at the first reply that the engine fails to give."""
        httpx = http()
        room = asyncio.Semaphore(self.batch_size)
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=self.server.url, timeout=self.timeout, limits=limits) as client:

            async def one(i: int) -> None:
                async with room:
                    done[i] = await self._ask(client, *wanted[i], sampling)
                if progress is not None:
                    progress(len(done))

            tasks = [asyncio.create_task(one(i)) for i in range(len(wanted)) if i not in done]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _ask(self, client: Any, prompt: Prompt, seed: int, sampling: Sampling) -> Rollout:
        httpx = http()
        parameters = {
            "max_tokens": sampling.max_new_tokens, "temperature": sampling.temperature, "top_p": sampling.top_p,
            "top_k": sampling.top_k, "seed": seed, "stop": list(sampling.stop), "stop_token_ids": list(sampling.stop_ids),
            "ignore_eos": True, "logprobs": 0, "detokenize": bool(sampling.stop), "include_stop_str_in_output": True,
        }  # fmt: skip
        try:
            answer = await client.post(GENERATE, json={"token_ids": prompt.tokens, "sampling_params": parameters})
        except httpx.HTTPError as error:
            raise EngineError(f"{type(error).__name__} {error}. {self.server.last_words()}") from None
        if answer.status_code != 200:
            raise EngineError(f"status {answer.status_code}: {answer.text[:500]}")
        try:
            choice = answer.json()["choices"][0]
            tokens = [int(token) for token in choice["token_ids"]]
            logp = [float(entry["logprob"]) for entry in choice["logprobs"]["content"]]
            versions = {span["version"] for span in choice["weight_versions"]}
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise EngineError(f"it answered what cannot be read ({error!r}): {answer.text[:300]}") from None
        self._believable(tokens, logp, versions, choice["finish_reason"])
        return self._rollout(prompt, tokens, logp, choice, sampling)

    def _believable(self, tokens: list[int], logp: list[float], versions: set[str], reason: Any) -> None:
        """Raises EngineError where an answer cannot be a reply of the present weights."""
        size = self.model.config.vocab_size
        wrong = ""
        if not tokens or len(tokens) != len(logp):
            wrong = f"{len(tokens)} tokens with {len(logp)} log-probabilities"
        elif not all(0 <= token < size for token in tokens):
            wrong = f"tokens outside of 0 to {size - 1}"
        elif not all(math.isfinite(value) and value < 1e-3 for value in logp):
            wrong = "log-probabilities that are no numbers up to 0"
        elif reason not in ("stop", "length"):
            wrong = f"finish reason {reason!r}"
        elif versions != {str(self.version)}:
            wrong = f"replies of version {sorted(versions)} of the weights where {self.version} was loaded"
        if wrong:
            raise EngineError(f"it answered with {wrong}")

    def _rollout(
        self, prompt: Prompt, tokens: list[int], logp: list[float], choice: dict[str, Any], sampling: Sampling
    ) -> Rollout:
        start = len(prompt.tokens)
        text = decode(self.model.tokenizer, tokens)
        stop = "length"
        if choice["finish_reason"] == "stop":
            stop = "eos" if tokens[-1] in sampling.stop_ids else "stop"
        sampled = torch.arange(start + len(tokens)) >= start
        known = torch.tensor(logp) if sampling.temperature > 0 else torch.zeros(len(logp))
        return Rollout(
            prompt=prompt,
            tokens=torch.cat([torch.tensor(prompt.tokens), torch.tensor(tokens)]),
            sampled=sampled,
            logp=torch.cat([torch.zeros(start), known.clamp(max=0)]),
            version=torch.where(sampled, self.version, -1),
            stop=stop,
            text=cut(text, sampling.stop) if stop == "stop" else text,
        )


def _run(work: Coroutine[Any, Any, None]) -> None:
    """Waits for `work`, also where an event loop runs already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(work)
    else:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(asyncio.run, work).result()


def _seed(seed: int, prompt: int, reply: int) -> int:
    """The seed of one reply."""
    return int(np.random.SeedSequence([seed, prompt, reply]).generate_state(1, np.uint32)[0])
