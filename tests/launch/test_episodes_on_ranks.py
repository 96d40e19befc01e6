"""Episodes that go on across weight updates, while two ranks learn: their run is that of one process."""

import json

import pytest

from gspo.backends.hf.tiny import build_tiny, tiny_qwen3_moe
from tests.agents.talking import tokenizer
from tests.launch.started import FORKED, apart, begin, finished
from tests.training.whole import lines

SETTINGS = """
model.path = "{place}/talker"
task = {{source = "{place}/rows.jsonl", environment = "quiz:Quiz"}}
rollout = {{num_prompts = 4, num_generations = 4, max_completion_length = 10, max_staleness = 2}}
algorithm = {{name = "gspo_token", credit = "turn", mini_batches = 1, old_logprobs = "sampler"}}
train = {{save_every = 3, seed = 1}}
eval.num_prompts = 0
[sampler]
engine = "vllm"
urls = ["{engine}"]
"""
QUIZ = """
from gspo.agents.environment import Step

class Quiz:
    tools = ()

    def __init__(self, row):
        self.turns = 0

    async def start(self):
        return [{"role": "user", "content": "say a"}]

    async def step(self, turn):
        self.turns += 1
        return Step([{"role": "user", "content": "go on"}], reward=turn["content"].count("a"), done=self.turns == 3)
"""


@pytest.fixture(scope="module")
def quiz(tmp_path_factory, engine):
    """A folder with a model that talks, an environment and settings."""
    place = tmp_path_factory.mktemp("quiz")
    outline = tiny_qwen3_moe(
        hidden=32, layers=2, experts=4, expert_width=32, heads=2, kv_heads=1, context=256, tie_word_embeddings=False
    )
    build_tiny(outline, tokenizer("chatml")).save(place / "talker")
    (place / "rows.jsonl").write_text("".join(json.dumps({"prompt": f"say a, {i}"}) + "\n" for i in range(40)))
    (place / "quiz.py").write_text(QUIZ)
    (place / "run.toml").write_text(SETTINGS.format(place=place, engine=engine))
    return place


def played(place, name, *arguments, steps=6):
    """A run of that name: its metrics, and its episodes."""
    exchange = place / f"{name}-exchange"
    exchange.mkdir()
    status, output = finished(
        begin(place, name, f"--sampler.weight_dir={exchange}", f"--train.steps={steps}", *arguments, faults=FORKED)
    )
    assert status == 0, output
    metrics, rollouts = (lines(place / name / f"{kind}.jsonl") for kind in ("metrics", "rollouts"))
    assert len(metrics) == steps and len(rollouts) == steps * 16
    assert max(line["staleness"] for line in metrics) > 0
    assert all(line["staleness"] <= 2 and line["rollouts/failed"] == 0 for line in metrics)
    return metrics, [(row["step"], row["prompt_id"], row["dialogue"], row["advantage"]) for row in rollouts]


@pytest.mark.slow
def test_two_ranks_learn_from_the_episodes_of_one(quiz):
    """With a learning rate that changes no weight, which update comes between two tokens makes no difference."""
    still = "--optimizer.lr=1e-12"
    (one, episodes), (two, same) = played(quiz, "one", still), played(quiz, "two", still, "--scale.ranks=2")
    assert episodes == same
    assert [line["grad_norm"] for line in two] == pytest.approx([line["grad_norm"] for line in one], rel=1e-5)
    assert apart(quiz, "two", "one") < 1e-6


def test_each_token_keeps_the_likelihood_of_the_weights_that_sampled_it(quiz):
    """Two ranks change the weights meanwhile. The third step's episodes begin as the second, sampled ahead, is learned."""
    short = "--rollout.max_staleness=1", "--rollout.max_completion_length=5"
    metrics, _ = played(quiz, "learning", "--scale.ranks=2", "--optimizer.lr=3e-3", *short, steps=3)
    assert sum(line["rollouts/multi_version"] for line in metrics) > 0
    assert all(line["mismatch/kl"] < 1e-8 for line in metrics)
