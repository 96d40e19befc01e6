"""A script as ART's users write it: a model learns to write small letters. Only the line that makes the backend is gspo's.

Run as `python -m tests.serving.art_script MODEL STEPS`, in the folder that gets `.art`.
"""

import asyncio
import string
import sys

import art

import gspo

WORDS = ("what is in the box", "what is in the bag", "who is there", "where is it")


def worth(text):
    """Share of small letters."""
    return sum(c in string.ascii_lowercase for c in text) / max(1, len(text))


async def rollout(model, word):
    trajectory = art.Trajectory(messages_and_choices=[{"role": "user", "content": word}], reward=0.0)
    completion = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(), messages=trajectory.messages(), max_tokens=12
    )
    choice = completion.choices[0]
    trajectory.messages_and_choices.append(choice)
    trajectory.reward = worth(choice.message.content or "")
    return trajectory


async def main(base_model, steps):
    backend = gspo.ArtBackend(lora={"rank": 0}, algorithm={"mini_batches": 1})
    model = art.TrainableModel(name="letters", project="words", base_model=base_model)
    await model.register(backend)
    for _ in range(await model.get_step(), steps):
        groups = await art.gather_trajectory_groups(
            (art.TrajectoryGroup(rollout(model, word) for _ in range(8)) for word in WORDS), pbar_desc="gather"
        )
        result = await backend.train(model, groups, learning_rate=1e-2)
        await model.log(groups, metrics=result.metrics, step=result.step, split="train")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
