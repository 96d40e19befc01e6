"""An agent with a tool, and the model under it that learns to use it.

    pip install -e '.[agents]' && python examples/agent.py

The agent asks what is in a box. The model may look, or guess; it has random weights, and has imitated players most of whom
guess without a look. GSPO trains it through the agent, which knows nothing of tokens: it asks an OpenAI-compatible endpoint,
and says what a conversation was worth. A minute or two on a CPU.
"""

import argparse
import asyncio
import random

import gspo
from gspo.backends.hf.tiny import build_tiny, longest_match_tokenizer, tiny_qwen3_moe

FRUITS = ["apple", "cherry", "fig", "lemon", "mango", "peach", "pear", "plum"]
QUESTION = "What is in the box?"
LOOK = {"name": "look", "description": "Looks into the box.", "parameters": {"type": "object", "properties": {}}}


async def agent(client, fruit):
    """One conversation; the right answer is worth 1."""
    trajectory = gspo.Trajectory([{"role": "user", "content": QUESTION}])
    for _ in range(3):
        response = await client.chat.completions.create(
            model="policy", messages=trajectory.messages(), tools=[{"type": "function", "function": LOOK}]
        )
        trajectory.messages_and_choices.append(response.choices[0])
        if not response.choices[0].message.tool_calls:
            break
        trajectory.messages_and_choices.append({"role": "tool", "content": fruit})
    trajectory.reward = float(response.choices[0].message.content == fruit)
    return trajectory


async def main(steps, seed, folder, imitate=80):
    """Trains. Returns the share of right answers before and after."""
    made, rng = cold_start(imitate, seed, f"{folder}-cold-start"), random.Random(seed)
    how = {"optimizer": {"lr": 7e-4}, "rollout": {"max_completion_length": 8}, "train": {"seed": seed}}
    async with gspo.serve(made.model, tokenizer=made.tokenizer, log={"dir": folder}, **how) as model:
        client = model.openai_client()

        def collect(boxes, tries):  # a group of conversations for each box, all at once
            fruits = [rng.choice(FRUITS) for _ in range(boxes)]
            return model.gather([agent(client, fruit) for _ in range(tries)] for fruit in fruits)

        before = await model.log(await collect(32, 4))
        for _ in range(steps):
            await model.train(await collect(8, 8))
        after = await model.log(await collect(32, 4))
    return before["val/reward"], after["val/reward"]


CALL = '{"name": "look", "arguments": {}}'
TEMPLATE = """{% for message in messages %}{{ '<' + message.role + '>' + message.content }}
{%- for call in message.tool_calls or [] %}{{ '<tool_call>' + (call.function | tojson) + '</tool_call>' }}{% endfor %}
{%- if message.role == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"""


def cold_start(steps, seed, folder, looks=0.2):
    """A model that imitates players: a share `looks` of them look into the box, the others say apple."""
    words = ["<user>", "<assistant>", "<tool>", "<tool_call>", "</tool_call>", QUESTION, CALL, *FRUITS]
    tokenizer = longest_match_tokenizer(words)
    tokenizer.chat_template = TEMPLATE
    tiny = build_tiny(tiny_qwen3_moe(hidden=64, experts=4, context=64), tokenizer, seed)
    rng, rows, call = random.Random(seed), [], f"<tool_call>{CALL}</tool_call>"
    for _ in range(2000):
        fruit, asked = rng.choice(FRUITS), [{"role": "user", "content": QUESTION}]
        looked = [*asked, {"role": "assistant", "content": call}, {"role": "tool", "content": fruit}]
        rows.append({"prompt": asked, "completion": call if rng.random() < looks else FRUITS[0]})
        rows.append({"prompt": looked, "completion": fruit})
    how = {"lr": 5e-3, "beta2": 0.95, "warmup": 10, "schedule": "cosine"}
    train, eval = {"steps": steps, "seed": seed}, {"num_prompts": 0}
    return gspo.sft(tiny.model, rows, tokenizer=tokenizer, optimizer=how, train=train, eval=eval, log={"dir": folder})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dir", default="runs/agent")
    options = parser.parse_args()
    before, after = asyncio.run(main(options.steps, options.seed, options.dir))
    print(f"right answers: {before:.0%} before, {after:.0%} after")
