"""An agent of two turns, without a model."""

import asyncio

import pytest

from gspo.recipes import agent


@pytest.mark.parametrize(
    "turns, rewards",
    [
        (["price(shell)", "4 x 7 = 28. Leo pays 28 dollars."], [0, 1]),
        ([" price(shell)\n", "28"], [0, 1]),
        (["price(shell)", "4 x 7 = 27."], [0, 0]),
        (["price(shell)", "price(shell)"], [0, 0]),
        (["price(coin)"], [0]),
        (["Leo pays 28 dollars."], [0]),  # a guess
        ([""], [0]),
    ],
)
def test_the_agent_asks_before_it_answers(turns, rewards):
    row = {"prompt": "How much?", "item": "shell", "price": 7, "answer": "28"}

    async def episode():
        shop = agent.Shop(row)
        assert (await shop.start())[-1] == {"role": "user", "content": "How much?"}
        return [await shop.step({"role": "assistant", "content": turn}) for turn in turns]

    steps = asyncio.run(episode())
    assert [step.reward for step in steps] == rewards and [step.done for step in steps] == [False, True][-len(turns) :]
    if len(turns) == 2:
        assert steps[0].messages[0]["content"] == "A shell costs 7 dollars."


def test_answers_of_the_agents_rows_are_right_and_held_out_products_are_never_trained_on():
    products = {}
    for name, rows in (("training", agent.training()), ("held out", agent.held_out())):
        products[name] = {(int(row["answer"]) // row["price"], row["price"]) for row in rows}
        assert all(f"for {int(row['answer']) // row['price']} {row['item']}s" in row["prompt"] for row in rows)
    assert len(products["held out"]) == 8 and not products["held out"] & products["training"]
