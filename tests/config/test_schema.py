import dataclasses

from gspo.config.files import docs
from gspo.config.schema import SECTIONS
from gspo.config.values import in_range


def test_every_field_has_a_docstring_a_type_in_words_and_a_range():
    for cls in SECTIONS.values():
        fields = {field.name for field in dataclasses.fields(cls)}
        assert set(docs(cls)) == fields
        assert all(text.rstrip().endswith(".") for text in docs(cls).values())
        for field in dataclasses.fields(cls):
            assert set(field.metadata) == {"low", "high", "choices", "path"}


def test_defaults_lie_in_their_range():
    for cls in SECTIONS.values():
        for field in dataclasses.fields(cls):
            in_range(field.name, getattr(cls(), field.name), field.metadata)
