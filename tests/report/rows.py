"""Rollouts as a run writes them."""

from gspo.runs.log import to_json


def rollouts(folder, rows):
    with (folder / "rollouts.jsonl").open("wb") as file:
        file.writelines(map(to_json, rows))


def row(step, prompt, reward, completion="yes", **more):
    return {"step": step, "prompt": prompt, "completion": completion, "reward": reward, "token_ids": [1, 2]} | more
