import json
import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gspo.data.prompts import PromptStream, load_demonstrations, load_prompts, prompt_order
from tests.data.rows import ROWS, datasets, load, write
from tests.data.tools import TEMPLATE, characters, text
from tests.logged import logs, silent


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
def test_files_give_up_their_last_rows(tmp_path, suffix):
    train, held_out = load(write(tmp_path / f"rows{suffix}", ROWS))
    assert [p.id for p in train] == [f"train-{i}" for i in range(36)]
    assert [p.id for p in held_out] == [f"eval-{i}" for i in range(36, 40)]
    assert train[3].messages == "3+1=" and text(characters(), train[3].tokens) == "<s>3+1="
    assert train[3].columns == {"answer": "4" if suffix == ".csv" else 4, "completion": "4"}


def test_lists_and_data_sets_in_memory():
    for rows in (ROWS, datasets.Dataset.from_list(ROWS)):
        train, held_out = load(rows=rows, num_prompts=2)
        assert (len(train), len(held_out)) == (38, 2)
        train, held_out = load(rows=rows, eval_rows=[{"prompt": "other"}] * 3, num_prompts=2)
        assert (len(train), len(held_out)) == (40, 2)


def test_few_rows_are_all_trained_on_unless_evaluation_is_asked_for():
    assert [len(part) for part in load(rows=ROWS[:9])] == [9, 0]
    with pytest.raises(ValueError, match=r"9 rows are too few to hold some out.*task\.eval_source"):
        load(rows=ROWS[:9], every=5)


def test_held_out_prompts_are_never_trained_on():
    with logs(match="2 rows left out of training: their prompts are held out"):
        train, held_out = load(rows=ROWS, eval_rows=ROWS[5:7])
    assert len(train) == 38 and not {p.messages for p in train} & {p.messages for p in held_out}
    with logs(match="only 2 of 4 held-out prompts are different, so intervals of accuracies are too narrow"):
        load(rows=ROWS, eval_rows=ROWS[5:7] * 2)
    with pytest.raises(ValueError, match="no row is left to train on: each of its prompts is also held out; give rows with"):
        load(rows=ROWS, eval_rows=ROWS)


def test_size_takes_the_first_rows_and_says_when_there_are_fewer():
    assert len(load(rows=ROWS, size=5)[0]) == 5 and [len(part) for part in load(rows=ROWS, num_prompts=0)] == [40, 0]
    with logs(match=r"task\.size = 100: the data set has only 36 training rows"):
        load(rows=ROWS, size=100)


def test_eval_source(tmp_path):
    train = write(tmp_path / "a.jsonl", ROWS)
    held_out = write(tmp_path / "b.csv", [{"prompt": "x"}, {"prompt": "y"}])
    first, second = load(train, eval_source=str(held_out))
    assert [len(first), [p.messages for p in second], second[0].task] == [40, ["x", "y"], str(held_out)]
    first, second = load("reasoning_gym:gcd", eval_source="reasoning_gym:lcm", size=4, num_prompts=4)
    assert {p.columns["metadata"]["source_dataset"] for p in second} == {"lcm"}


SHOWS_TOOLS = "{% if tools %}{{ tools | tojson }};{% endif %}" + TEMPLATE.replace("{{ bos_token }}", "")


def test_the_tools_of_a_row_are_in_its_prompt(subtests):
    """As lists, as JSON, or of Arrow, which adds the parameters of all other tools."""
    tools = [{"type": "function", "function": {"name": f"get_{x}", "parameters": {"properties": {x: {}}}}} for x in "ab"]
    rows = [{"prompt": [{"role": "user", "content": "ask"}], "tools": [tool]} for tool in tools]
    in_json = [row | {"tools": json.dumps(row["tools"])} for row in rows]
    for name, data in (("lists", rows), ("JSON", in_json), ("Arrow", datasets.Dataset.from_list(rows))):
        with subtests.test(name):
            train, _ = load(rows=data, num_prompts=0, tokenizer=characters(SHOWS_TOOLS), system="")
            for prompt, tool in zip(train, tools):
                shown, _, rest = text(characters(), prompt.tokens).partition(";")
                assert json.loads(shown) == [tool] and rest == "[user]ask;[assistant]"
    for other in (["hammer"], [{"kind": "hammer"}], "a hammer", [], None, 7):
        (prompt,), _ = load(rows=[{"prompt": "ask", "tools": other}], tokenizer=characters(SHOWS_TOOLS), system="")
        assert text(characters(), prompt.tokens) == "[user]ask;[assistant]"
    for template in (TEMPLATE, None):
        prompt = rows[0]["prompt"] if template else "ask"
        with pytest.raises(ValueError, match="does not show the tools of the column 'tools': take a chat"):
            load(rows=[{"prompt": prompt, "tools": tools}], tokenizer=characters(template))


def test_prompts_are_the_same_where_the_model_reads_the_same():
    """A bare text, and a chat message that the template makes the same of."""
    messages = [{"role": "user", "content": "ab1"}]
    with logs(match="1 rows left out of training: their prompts are held out"):
        train, held_out = load(
            rows=[GOOD, {"prompt": "ab1"}], eval_rows=[{"prompt": messages}], tokenizer=characters(TEMPLATE)
        )
    assert [prompt.messages for prompt in train] == ["x"] and held_out[0].messages == messages


def test_prompts_that_are_all_the_same_are_told_of():
    with logs(match="all 4 training prompts are the same; .*task.prompt_column"):
        load(rows=[{"prompt": "x", "answer": i} for i in range(4)])


@pytest.mark.parametrize("loader", [load_prompts, load_demonstrations])
def test_rows_that_are_too_long_are_refused_or_left_out_and_counted(loader):
    rows = [row | {"completion": "1"} for row in ROWS]
    rows[3] = rows[3] | {"prompt": "x" * 9}
    rows[39] = rows[39] | {"prompt": "x" * 9}
    with pytest.raises(ValueError, match=r'row 39: .*but only 9 fit: shorten it, set task\.too_long = "leave_out"'):
        load(rows=rows, limit=9, loader=loader)
    with logs(level=logging.INFO) as heard:
        train, held_out = load(rows=rows, limit=9, loader=loader, too_long="leave_out")
    assert [len(train), len(held_out)] == [35, 3]
    assert heard == ["the data set: 1 rows left out: too long (task.too_long)"] * 2
    rows = rows[:36] + [row | {"prompt": "x" * 9} for row in rows[36:]]
    with pytest.raises(ValueError, match=r"all 4 held-out rows are too long .*, or give shorter ones$"):
        load(rows=rows, limit=9, loader=loader, too_long="leave_out")
    with pytest.raises(ValueError, match="all 4 held-out rows are too long"):
        load(rows=rows, limit=2, loader=loader, too_long="leave_out")


def test_rows_to_imitate():
    train, held_out = load(rows=ROWS, loader=load_demonstrations)
    assert [len(train), len(held_out)] == [36, 4]
    assert text(characters(), train[7].tokens + train[7].completion) == "<s>7+1=8</s>"
    chat = [{"prompt": "hi", "completion": [{"role": "assistant", "content": "ho"}]}]
    assert load(rows=chat, loader=load_demonstrations)[0][0].text == "ho"
    chat[0]["completion"][0]["tool_calls"] = [{"name": "f"}]
    with pytest.raises(ValueError, match=r"the completion .* has tool calls: give the turn as the text"):
        load(rows=chat, loader=load_demonstrations)
    opens = TEMPLATE + "{% if add_generation_prompt %}<think>{% endif %}"
    rows = [{"prompt": "hi", "completion": "I greet.</think>ho"}]
    assert load(rows=rows, loader=load_demonstrations, tokenizer=characters(opens))[0]
    with pytest.raises(ValueError, match="row 0: the prompt ends inside <think>, and the completion never ends it"):
        load(rows=[rows[0] | {"completion": "ho"}], loader=load_demonstrations, tokenizer=characters(opens))
    row, _ = load("reasoning_gym:gcd", size=4, num_prompts=0, completion_column="answer", loader=load_demonstrations)
    assert row[0].text == row[0].columns["answer"]


GOOD = {"prompt": "x"}


def test_bad_rows(subtests):
    for rows, loader, message in (
        ({"prompt": ["x"]}, load_prompts, "expected a list of dicts .*, got a dict with prompt: choose one split"),
        (iter(ROWS), load_prompts, "expected a list of dicts or a datasets.Dataset, got a list_iterator.*streamed"),
        ([GOOD, "x"], load_prompts, "row 1: is a str, expected a dict of columns"),
        ([GOOD, {"prompt": None}], load_prompts, r"row 1: the prompt \(column 'prompt'\) is a NoneType"),
        ([GOOD], load_demonstrations, "row 0: there is no column 'completion'; set task.completion_col"),
        ([GOOD | {"completion": 3}], load_demonstrations, "row 0: the completion .* is an int; expected"),
        ([GOOD | {"completion": ""}], load_demonstrations, "row 0: the completion .* is empty"),
        ([GOOD | {"completion": "y" * 6}], load_demonstrations, "the prompt with its completion has 9 tokens"),
    ):
        with subtests.test(message), pytest.raises(ValueError, match=message):
            load(rows=rows, limit=8, loader=loader)
    with pytest.raises(ValueError, match=r"row 0: the prompt \(column 'prompt'\) is empty"):
        load(rows=[{"prompt": ""}], tokenizer=characters(bos=False))
    for prompt in ("", " \n", [{"role": "user", "content": ""}]):
        with subtests.test(prompt=prompt), pytest.raises(ValueError, match=r"row 0: .* is empty"):
            load(rows=[{"prompt": prompt}], tokenizer=characters(TEMPLATE))


def test_a_prompt_that_is_rendered_already_is_told_of_once():
    rows = [{"prompt": f"<s>[user]{i}</s>[assistant]"} for i in range(3)]
    with logs(match='the special token <s> in its text.*task.template = "none"') as heard:
        load(rows=rows, tokenizer=characters(TEMPLATE))
    assert len(heard) == 1
    with silent():
        load(rows=rows, tokenizer=characters(TEMPLATE), template="none")


@settings(deadline=None)
@given(st.integers(1, 20), st.integers(0, 2**32), st.lists(st.integers(0, 30), max_size=6), st.integers(0, 6))
def test_a_stream_that_is_resumed_goes_on_as_if_never_stopped(n, seed, takes, stop):
    uninterrupted = PromptStream(range(n), seed).take(sum(takes))
    stream = PromptStream(range(n), seed)
    parts = [item for k in takes[:stop] for item in stream.take(k)]
    assert stream.position == len(parts)
    resumed = PromptStream(range(n), seed)
    resumed.position = stream.position
    parts += [item for k in takes[stop:] for item in resumed.take(k)]
    assert parts == uninterrupted
    for epoch in range(len(uninterrupted) // n):
        assert uninterrupted[epoch * n : (epoch + 1) * n] == prompt_order(n, seed, epoch)
        assert sorted(prompt_order(n, seed, epoch)) == list(range(n))


def test_orders_differ_between_passes_and_seeds_and_never_change():
    assert prompt_order(8, 0, 0) == [0, 2, 1, 4, 6, 7, 3, 5]  # a run begun elsewhere resumes here
    assert len({tuple(prompt_order(50, seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9
    with pytest.raises(ValueError, match="no prompts"):
        PromptStream([], 0)


def test_a_system_message_and_where_it_stands_is_told(subtests):
    user_alone = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}"
    where = "at the beginning of their first user message, for the chat template shows no system message"
    for template, system, words in (
        (TEMPLATE, "auto", 'prompts get the system message "Tags.": a reward reads the answer there'),
        (user_alone, "auto", f'system message "Tags." {where}: a'),
        (user_alone, "s", f"task.system {where}"),
    ):
        with subtests.test(words), logs(match=words, level=logging.INFO):
            load(rows=ROWS, tokenizer=characters(template), system=system)


def test_messages_of_arrow_tables_have_the_keys_that_they_were_written_with(tmp_path):
    """Parquet gives each object the keys of all others, with null; a null that a JSON file holds was written there."""
    template = (
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c | tojson }}{% endfor %}{% endfor %}"
    )
    rows = [
        {"prompt": [
            {"role": "user", "content": "?", "name": None},
            {"role": "assistant", "content": "", "tool_calls": [{"id": "i", "function": {"name": "f", "arguments": given}}]},
            {"role": "tool", "content": "1"},
        ], "deep": {"k": None}}
        for given in ({"city": "Ulm"}, {"zone": "x"})
    ]  # fmt: skip
    for source in (write(tmp_path / "rows.parquet", rows), write(tmp_path / "rows.jsonl", rows)):
        train, _ = load(source, num_prompts=0, tokenizer=characters(template))
        assert ['"zone"' in text(characters(), prompt.tokens) for prompt in train] == [False, True]
        assert train[0].columns["deep"] == {"k": None}
    rows[0]["prompt"][1]["tool_calls"][0]["function"]["arguments"] = {"zone": None}
    (prompt, _), _ = load(rows=rows, num_prompts=0, tokenizer=characters(template))
    assert '{"zone": null}' in text(characters(), prompt.tokens)


def test_columns_of_verl_are_read_by_dotted_names(tmp_path):
    rows = [{"data": {"prompt": f"{i}+1="}, "reward_model": {"answer": i, "said": "two"}} for i in range(20)]
    names = {"prompt_column": "data.prompt", "completion_column": "reward_model.said"}
    for loader in (load_prompts, load_demonstrations):
        train, held_out = load(write(tmp_path / "rows.parquet", rows), loader=loader, **names)
        assert (len(train), len(held_out)) == (18, 2)
    assert train[3].messages == "3+1=" and train[3].text == "two" and train[3].columns == rows[3]
