"""Which prompts a run takes over its stages and refreshes, and runs that are killed about a border."""

import dataclasses
import shutil

import pytest

from gspo.config.policy import ResolvedAlgorithm
from gspo.config.rollout import RolloutConfig
from gspo.config.stages import RefreshConfig, StageConfig
from gspo.data.refresh import Pool
from gspo.interfaces import SamplerError
from gspo.rollout.asynchronous import AsynchronousSource
from gspo.rollout.dynamic_sampling import DynamicSamplingSource
from gspo.rollout.stages import TASK, Curriculum
from gspo.rollout.synchronous import SynchronousSource
from gspo.types import Group, Prompt, Sampling
from tests.logged import logs
from tests.rollout.test_asynchronous import Engine
from tests.rollout.test_credit import rollout
from tests.rollout.test_synchronous import Echo
from tests.training.whole import lines, numbers, train

P, G, STEPS = 4, 2, 9
STAGES = [StageConfig(at=4, num_generations=3, max_completion_length=9), StageConfig(at=6, temperature=0.5, source="more")]
REFRESH = RefreshConfig(every=2, drop_above=0.8, drop_below=0.2, return_after=4, keep=3)


def four(j):
    return 4


def pool(name, n=10, first=0):
    return Pool(name, [Prompt(f"{name}-{i}", "", (first + i, 1), {"length": four}) for i in range(n)], 0)


def curriculum(rollout, refresh=REFRESH, stages=STAGES, **given):
    return Curriculum([pool(TASK), pool("stage6", first=8)], rollout, stages, refresh, **given)


class ByNumber:
    """A third of the queries is always right, a third never, a third at times."""

    def score(self, rollouts, progress=None, groups=None):
        marks = [(1.0, 0.0, float(j % 2))[r.prompt.tokens[0] % 3] for j, r in enumerate(rollouts)]
        return [dataclasses.replace(r, reward=mark, reward_parts={}) for r, mark in zip(rollouts, marks)]

    def counts(self):
        return {}


class Heard(Engine):
    """An engine that records what it was asked for."""

    def __init__(self):
        super().__init__(speed=1)
        self.asked = []

    def begin(self, so_far, seed, sampling):
        self.asked.append((so_far.prompt.id, seed, sampling.max_new_tokens, sampling.temperature))
        return super().begin(so_far, seed, sampling)


class Asked(Echo):
    def generate(self, prompts, n, sampling, progress=None):
        super().generate(prompts, n, sampling)
        made = [rollout(None, who=p) for p in prompts for _ in range(n)]
        self.asked[-1] = ([p.id for p in prompts], n, sampling.seed, sampling.max_new_tokens, sampling.temperature)
        return made

    def load(self, version):
        self.version = version


def source_of(kind, ahead=0):
    config = RolloutConfig(num_prompts=P, num_generations=G, **{kind: ahead} if ahead else {})
    prompts = curriculum(config)
    if kind == "max_staleness":
        return AsynchronousSource(prompts, Heard(), ByNumber(), config, Sampling(5, seed=3))
    if kind == "dynamic_sampling_rounds":
        algorithm = ResolvedAlgorithm()
        return DynamicSamplingSource(prompts, Asked(), ByNumber(), config, Sampling(5, seed=3), algorithm=algorithm)
    return SynchronousSource(prompts, Asked(), ByNumber(), config, Sampling(5, seed=3))


def play(source, steps):
    """What each step trains on, and its metrics."""
    groups, found = iter(source), []
    for _ in range(steps):
        batch = [next(groups) for _ in range(P)]
        counts = {k: v for k, v in source.metrics.items() if not k.startswith("time/")}
        found.append(([(g.prompt.id, [r.reward for r in g.rollouts]) for g in batch], counts))
        source.sampler.load(source.sampler.version + 1)
    return found


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("gspo.rollout.asynchronous.POLL", 0.0)


KINDS = [("", 0), ("max_staleness", 1), ("max_staleness", 2), ("dynamic_sampling_rounds", 2)]


@pytest.mark.parametrize(("kind", "ahead"), KINDS)
def test_a_run_that_is_killed_anywhere_goes_on_alike(kind, ahead):
    whole = play(source_of(kind, ahead), STEPS)
    for cut in range(1, STEPS):
        source = source_of(kind, ahead)
        first = play(source, cut)
        again = source_of(kind, ahead)
        again.load_state_dict(source.state_dict())
        again.sampler.version = source.sampler.version
        assert first + play(again, STEPS - cut) == whole, f"killed after step {cut}"


@pytest.mark.parametrize(("kind", "ahead"), KINDS)
def test_each_batch_is_that_of_its_own_stage(kind, ahead):
    source = source_of(kind, ahead)
    for step, (batch, counts) in enumerate(play(source, STEPS), 1):
        assert {len(rewards) for _, rewards in batch} == {G if step < 4 else 3}
        assert {name.partition("-")[0] for name, _ in batch} == {TASK if step < 6 else "stage6"}
        assert counts["stage"] == (step >= 4) + (step >= 6)
        assert counts["stage/max_completion_length"] == (256 if step < 4 else 9)
        assert counts["queries/new"] == (8 if step == 6 else 0)  # two of the ten are the task's too
    assert {(asked[-2], asked[-1]) for asked in source.sampler.asked} == {(256, 1.0), (9, 1.0), (9, 0.5)}


def test_what_is_under_way_ends_under_its_own_stage_also_after_a_resume():
    source = source_of("max_staleness", 2)
    play(source, 2)  # steps 3 and 4 are under way
    assert [size for _, _, size, _ in source.sampler.asked] == [256] * 3 * P * G + [9] * P * 3
    again = source_of("max_staleness", 2)
    again.load_state_dict(source.state_dict())
    next(iter(again))
    asked = [(name, size) for name, _, size, _ in again.sampler.asked]
    assert asked[: P * G : G] == [(flight.prompt.id, 256) for flight in list(source.flights)[:P]]
    assert [size for _, size in asked[P * G :]] == [9] * 2 * P * 3


def test_dropped_queries_are_not_asked_for_and_return():
    counts = [counts for _, counts in play(source_of(""), 5)]
    assert counts[2]["queries/dropped"] > 0 and counts[2]["queries/resting"] == counts[2]["queries/dropped"]
    assert counts[2]["queries/active"] == 10 - counts[2]["queries/resting"]
    source = source_of("dynamic_sampling_rounds", 2)
    play(source, 4)
    task, before = source.prompts.pools[TASK], len(source.sampler.asked)
    resting = {task.prompts[query].id for query in task.resting}
    play(source, 1)
    assert resting and resting.isdisjoint(name for names, *_ in source.sampler.asked[before:] for name in names)


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_refresh_counts_at_the_first_step_that_trains_on_it(ahead):
    """Then the collapse guard begins anew, and no earlier."""
    source = source_of("max_staleness", ahead) if ahead else source_of("")
    counts = [counts for _, counts in play(source, 3 + ahead)]
    assert [each["queries/dropped"] > 0 for each in counts] == [False] * (2 + ahead) + [True]


def test_a_rewind_gives_dropped_queries_back_and_counts_them():
    source = source_of("max_staleness", 2)
    play(source, 2)
    good = source.state_dict()
    play(source, 2)  # what is dropped after step 2 counts at step 5
    dropped = len(source.prompts.pools[TASK].resting)
    source.drop(good)
    ((_, counts),) = play(source, 1)
    assert dropped and counts["queries/returned"] == dropped


def test_a_batch_that_was_lost_is_asked_for_again_and_refreshed_once():
    class Dies(Asked):
        def generate(self, *args):
            if len(self.asked) == 2:
                raise SamplerError("dead")
            return super().generate(*args)

    whole = play(source_of(""), 5)
    source = source_of("")
    source.sampler = Dies()
    first = play(source, 2)
    with pytest.raises(SamplerError):
        next(iter(source))
    again = source_of("")
    again.load_state_dict(source.state_dict())
    assert first + play(again, 3) == whole


def test_keep_is_said_plainly():
    rules = RefreshConfig(every=1, drop_above=0.5, keep=9)
    made = curriculum(RolloutConfig(), rules, ())
    taken = made.take(10, 1)
    made.observe([Group(p, [rollout(1.0, who=p)] * 2) for p in taken])
    with logs(match="refresh.keep lets 9 queries stay: 9 that lie beyond"):
        made.begin(1)
    assert len(made.pools[TASK].active) == 9


def test_a_function_gives_new_queries_and_is_not_asked_again():
    calls = []

    def rebuild(name, rows):
        return dataclasses.replace(pool(name, len(rows), rows[0]["first"]), rows=rows)

    def make(name, step):
        calls.append(step)
        return rebuild(name, [{"first": 5 * step}] * 6)

    def fresh(ahead):
        config = RolloutConfig(num_prompts=P, num_generations=G, max_staleness=ahead)
        rules = RefreshConfig(every=2, source="rows:new")
        prompts = Curriculum([pool(TASK)], config, (), rules, make=make, rebuild=rebuild)
        kind, sampler = (AsynchronousSource, Heard()) if ahead else (SynchronousSource, Asked())
        return kind(prompts, sampler, ByNumber(), config, Sampling(5, seed=3))

    for ahead in (0, 1, 3):
        whole = play(fresh(ahead), 8)
        names = [batch[0][0].partition("-")[0] for batch, _ in whole]
        assert names == ([TASK] * (2 + ahead) + ["refresh2"] * 2 + ["refresh4"] * 2 + ["refresh6"] * 2)[:8]
        for cut in range(1, 8):
            source = fresh(ahead)
            first = play(source, cut)
            again = fresh(ahead)
            calls.clear()
            again.load_state_dict(source.state_dict())
            again.sampler.version = source.sampler.version
            assert not calls and first + play(again, 8 - cut) == whole


RUN = {
    "stage": [{"at": 4, "max_completion_length": 12, "temperature": 0.7, "num_generations": 6}],
    "refresh": {"every": 2, "drop_above": 0.3, "drop_below": 0.05, "return_after": 4, "keep": 12},
    "train": {"steps": 6, "save_every": 1, "keep_checkpoints": 9},
    "eval": {"every": 0, "num_prompts": 4},
}


def test_a_whole_run_resumes_bit_for_bit_about_a_stage_and_a_refresh(tmp_path):
    more = tmp_path / "more.jsonl"
    more.write_text("".join(f'{{"prompt": "{i}+1?", "answer": "a"}}\n' for i in range(10, 30)))
    run = RUN | {"stage": [*RUN["stage"], {"at": 5, "source": str(more)}]}
    whole = train(tmp_path / "run", **run).folder
    steps = numbers(whole)
    assert [line["stage"] for line in steps] == [0, 0, 0, 1, 2, 2]
    assert sum(line["queries/dropped"] for line in steps) > 0
    rollouts = (whole / "rollouts.jsonl").read_bytes()
    assert {r["prompt_id"][:6] for r in lines(whole / "rollouts.jsonl") if r["step"] >= 5} == {"stage5"}
    for cut in (2, 3, 4, 5):
        folder = tmp_path / f"killed after {cut}"
        shutil.copytree(whole, folder)
        for later in range(cut + 1, 7):
            shutil.rmtree(folder / "checkpoints" / f"step_{later:06d}")
        again = train(folder, resume=True, **run)
        assert numbers(again.folder) == steps and (folder / "rollouts.jsonl").read_bytes() == rollouts


def test_a_past_stage_stays_and_a_future_one_may_change(tmp_path):
    run = RUN | {"train": {"steps": 4}}
    train(tmp_path / "run", **run)
    longer = RUN | {"train": {"steps": 5}}
    with pytest.raises(ValueError, match=r"\[\[stage\]\] up to step 4 cannot be changed in a resumed run"):
        train(tmp_path / "run", resume=True, **longer | {"stage": [{"at": 4, "temperature": 0.9}]})
    more = longer | {"stage": [*RUN["stage"], {"at": 5, "num_generations": 3}]}
    again = train(tmp_path / "run", resume=True, **more)
    assert sum(r["step"] == 5 for r in lines(again.folder / "rollouts.jsonl")) == 8 * 3


def test_likelihoods_are_read_at_the_temperature_of_their_stage(tmp_path):
    """Else the first update of a batch would not be on policy."""
    run = train(tmp_path / "run", **RUN | {"train": {"steps": 5}, "algorithm": {"beta": 0.1}})
    assert [line["stage/temperature"] for line in numbers(run.folder)] == [1, 1, 1, 0.7, 0.7]
    assert all(line["ratio/noise_floor"] < 1e-5 and line["mismatch/kl"] < 1e-6 for line in numbers(run.folder))
