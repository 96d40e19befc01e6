import dataclasses
import typing

from gspo.config.files import docs
from gspo.config.schema import SECTIONS
from gspo.config.values import alternatives, in_range


def test_every_field_has_a_docstring_a_type_in_words_and_a_range_with_its_default():
    for cls in SECTIONS.values():
        fields, hints = dataclasses.fields(cls), typing.get_type_hints(cls)
        assert set(docs(cls)) == {field.name for field in fields}
        assert all(text.rstrip().endswith(".") for text in docs(cls).values())
        for field in fields:
            assert set(field.metadata) == {"low", "high", "choices", "path"}
            in_range(field.name, getattr(cls(), field.name), field.metadata)
            if {int, float, list[float]} & set(alternatives(hints[field.name])):
                low, high = field.metadata["low"], field.metadata["high"]
                assert low is not None and high <= 1e12 and (low <= 0 or low > 1e-30), "numbers beyond overflow somewhere"
                assert field.name != "seed" or high == 2**32 - 1
