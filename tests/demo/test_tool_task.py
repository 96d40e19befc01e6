"""The agents' demo: its environment, and a cold start in the very tokens that episodes have."""

import asyncio
import json

import pytest

from gspo.agents.tool_calls import convention
from gspo.backends.hf.tiny import longest_match_tokenizer
from gspo.config.rollout import TaskConfig
from gspo.data.chat_template import Encoder
from gspo.demo import tool_task

ROW = {"prompt": tool_task.QUESTION.format("WXYZ"), "way": "dbfeac"}


def played(*answers):
    """The steps of an episode."""

    async def play():
        environment = tool_task.Boxes(ROW)
        assert await environment.start() == [{"role": "user", "content": ROW["prompt"]}]
        return [await environment.step({"role": "assistant", **answer}) for answer in answers]

    return asyncio.run(play())


def look(box):
    arguments = json.dumps({"box": box})
    return {"content": "", "tool_calls": [{"id": "1", "function": {"name": "look", "arguments": arguments}}]}


@pytest.mark.parametrize(("answer", "reward"), [("Box c.", 1), ("Box a.", 0), ("c", 0), ("", 0)])
def test_an_answer_ends_it(answer, reward):
    (step,) = played({"content": answer})
    assert step.done and step.reward == reward and step.metrics == {"found": reward, "looks": 0}


def test_looking():
    *looked, end = played(look("a"), look("c"), look("Room "), {"content": "", "malformed": "no end"}, {"content": "Box c."})
    contents = ["see c", "the ball is in c", tool_task.HELP, tool_task.HELP]
    assert [[message["content"] for message in step.messages] for step in looked] == [[content] for content in contents]
    assert [step.reward for step in looked] == [-tool_task.LOOK_COSTS] * 4 and not any(step.done for step in looked)
    assert looked[3].metrics == {"tools/malformed": 1} and end.metrics["looks"] == 2


def spoken(row):
    """A row of the cold start as messages."""
    messages = [{"role": "user", "content": row["prompt"]}]
    for part in row["completion"].split("<|assistant|>"):
        words, _, heard = part.partition("<eos><|tool|>")
        content, calls = convention(tool_task.TEMPLATE)(words)
        called = [{"type": "function", "function": {"name": name, "arguments": arguments}} for name, arguments in calls]
        messages.append({"role": "assistant", "content": content} | ({"tool_calls": called} if called else {}))
        messages += [{"role": "tool", "content": heard}] if heard else []
    return messages


def test_the_cold_start_is_in_the_words_of_episodes():
    tokenizer = longest_match_tokenizer(tool_task.PIECES)
    tokenizer.chat_template = tool_task.TEMPLATE
    encoder = Encoder(tokenizer, TaskConfig())
    rows = tool_task.cold_start(200, 0.5, 0.1, 0)
    for row in rows:
        messages = spoken(row)
        text = encoder.render(messages, add_generation_prompt=False)
        assert text == encoder.render(messages[:1], add_generation_prompt=True) + row["completion"] + "<eos>"
        assert tokenizer.decode(encoder.bare(text)) == text
    assert 60 < sum("look" in row["completion"] for row in rows) < 140
