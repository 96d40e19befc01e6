import json
from itertools import product

from gspo.agents.tool_arguments import Untyped, typed
from gspo.agents.tool_calls import convention
from tests.agents.tool_templates import BARE, FAMILIES, written

TEXTS = ["12345", "1.5", "-0", "1e5", "NaN", "true", "True", "null", "None", '{"a": 1}', "[1, 2]", '"quoted"', "", " 1 "]
VALUES = {
    "string": TEXTS, "integer": [0, -7, 10**30], "number": [1.5, 3, 1e300], "boolean": [True, False], "null": [None],
    "object": [{}, {"a": "1", "b": [None, "true"]}], "array": [[], ["1", 1, {"a": "null"}]],
}  # fmt: skip


def tool(properties, **more):
    parameters = {"type": "object", "properties": properties, **more}
    return {"type": "function", "function": {"name": "f", "parameters": parameters}}


def same(found, given):
    return json.dumps(found) == json.dumps(given)  # 1 == True == 1.0


def test_arguments_of_every_type_come_back_as_they_were(subtests):
    """Rendered by a template with the family's marks, with the schemas of the tool that is called."""
    for family, type in product(FAMILIES | BARE, VALUES):
        with subtests.test(family=family, type=type):
            arguments = {f"k{i}": value for i, value in enumerate(VALUES[type])}
            words, template = written(family, "", [("f", arguments)])
            ((name, found),) = typed(convention(template)(words)[1], [tool({key: {"type": type} for key in arguments})])
            assert name == "f" and same(found, arguments)


TEXT, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}


SAYS = [
    ({"type": ["string", "null"]}, "12", "12"),
    ({"type": ["string", "null"]}, "null", None),
    ({"anyOf": [TEXT, {"type": "null"}]}, "true", "true"),
    ({"anyOf": [TEXT, INTEGER]}, "12", 12),
    ({"anyOf": [TEXT, INTEGER]}, "1.5", "1.5"),
    ({"oneOf": [TEXT, NUMBER]}, "1.5", 1.5),
    ({"anyOf": [TEXT, {}]}, "12", 12),  # any value
    ({"allOf": [{"$ref": "#/$defs/Name"}], "description": "d"}, "12", "12"),
    ({"$ref": "#/$defs/Name"}, "12", "12"),
    ({"$ref": "elsewhere.json"}, "12", 12),
    ({"enum": ["1", "2"]}, "1", "1"),
    ({"const": 1}, "1", 1),
    ({"type": "string"}, "[" * 5000, "[" * 5000),
    ({"type": "boolean"}, "True", True),  # as Qwen3-Coder's template writes it
    ({"type": ["integer", "null"]}, "None", None),
    ({"type": "integer"}, "several", "several"),  # the tool is to say what is wrong
    ({"type": "string"}, "None", "None"),
    *(({"type": "integer", keyword: None}, "several", "several") for keyword in ("enum", "anyOf", "oneOf", "allOf", "$ref")),
    ({"type": None, "enum": ["1"]}, "1", "1"), ({"type": None}, "1", 1), ({"const": None}, "null", None),
    ({}, "12", 12), ({}, "True", "True"), (None, "12", 12), (True, "null", None), ({"description": "d"}, "a b", "a b"),
]  # fmt: skip


def test_what_a_schema_says():
    defs = {"Name": TEXT}
    for schema, text, value in SAYS:
        for one in (tool({"x": schema}, **{"$defs": defs}), tool({"x": schema}, **{"$defs": defs})["function"]):
            ((_, found),) = typed([("f", {"x": Untyped(text)})], [one])
            assert same(found["x"], value) and type(found["x"]) is type(value)


def test_arguments_that_no_property_names():
    calls = [("f", {"x": Untyped("1"), "y": "2"}), ("unknown", {"x": Untyped("1")})]
    for nothing in (tool({}), tool(None), {"function": {"name": "f"}}, {"function": {"name": "f", "parameters": None}}):
        assert typed(calls, [nothing]) == [("f", {"x": 1, "y": "2"}), ("unknown", {"x": 1})]
