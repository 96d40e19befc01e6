import pytest

from gspo.data.messages import check_messages, templated, without_filling


def call(**function):
    return {"id": "i", "type": "function", "function": {"name": "f"} | function}


def test_a_message_has_one_form_whoever_wrote_it(subtests):
    said = {"role": "assistant", "content": ""}
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    cases = [
        ({"role": "developer", "content": parts, "name": ""}, {"role": "system", "content": "ab"}),
        ({"role": "user", "content": "a", "tool_calls": None, "z": None, "x": 1}, {"role": "user", "content": "a", "x": 1}),
        *(({**said, "content": None, "tool_calls": [call(arguments=given)]}, said | {"tool_calls": [call(arguments=read)]})
          for given, read in (("", {}), (None, {}), ("null", {}), ('{"a": 1}', {"a": 1}), ({"a": None}, {"a": None}),
                              ("{oops", "{oops"), ("[" * 10**5, "[" * 10**5))),
        ({**said, "tool_calls": [{"name": "f", "type": None}]}, said | {"tool_calls": [call(arguments={}) | {"id": ""}]}),
        ({**said, "tool_calls": call()}, said | {"tool_calls": [call(arguments={})]}),
    ]  # fmt: skip
    for message, read in cases:
        with subtests.test(message=str(message)[:80]):
            assert templated(message) == read == templated(templated(message))


def test_what_is_no_message(subtests):
    turns = [
        {"role": "user"},
        {"role": "assistant", "tool_calls": [3]},
        {"role": "assistant", "tool_calls": {"function": 1}},
        {"role": "assistant", "tool_calls": [{"function": {"arguments": {}}}]},
        {"role": "assistant", "tool_calls": [call(name=None)]},
        {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
        {"role": "", "content": "a"},
        {"role": "human", "content": "a"},
    ]
    for message in turns:
        with subtests.test(message=message), pytest.raises(ValueError, match="message 0 "):
            check_messages([message])
    check_messages([{"role": "assistant", "tool_calls": [call()]}])


def test_only_messages_lose_the_nulls_of_a_table():
    row = {"x": None, "y": {"z": None}, "list": [{"k": None}], "prompt": [{"role": "user", "a": None, "b": [{"c": None}]}]}
    assert without_filling(row) == row | {"prompt": [{"role": "user", "b": [{}]}]}
