import pytest

from gspo.agents.tool_calls import Malformed, bare, convention, functions, listed, tagged
from tests.agents.talking import CHATML, HEADERS, TEMPLATES


@pytest.mark.parametrize(
    ("parse", "text", "found"),
    [
        (tagged, "no call", ("no call", [])),
        (tagged, 'a <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call><tool_call>{"name": "g"}</tool_call>',
         ("a", [("f", {"x": 1}), ("g", {})])),
        (functions, "<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n<parameter=y>\na b\n</parameter>\n"
         "</function>\n</tool_call>",
         ("", [("f", {"x": 1, "y": "a b"})])),
        (listed, 'a [TOOL_CALLS][{"name": "f", "arguments": {}}]', ("a", [("f", {})])),
        (bare, '{"name": "f", "parameters": {"x": null}}', ("", [("f", {"x": None})])),
        (bare, "no call", ("no call", [])),
    ],
)  # fmt: skip
def test_conventions(parse, text, found):
    assert parse(text) == found


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (tagged, "<tool_call>"), (tagged, "<tool_call>{}</tool_call>"), (tagged, "<tool_call>[1]</tool_call>"),
        (tagged, '<tool_call>{"name": "f", "arguments": "x"}</tool_call>'), (functions, "<tool_call>f(x)</tool_call>"),
        (listed, "[TOOL_CALLS] f"), (listed, '[TOOL_CALLS]{"name": "f"}'), (bare, '{"name": "f", '),
    ],
)  # fmt: skip
def test_malformed_calls(parse, text):
    with pytest.raises(Malformed):
        parse(text)


def test_the_template_tells_the_convention():
    assert convention(CHATML) is tagged and convention(HEADERS) is listed
    assert convention("<tool_call><function=") is functions and convention("no tools") is None and convention(None) is None
    assert set(TEMPLATES) == {"chatml", "headers"}
