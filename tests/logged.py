"""What gspo logs in a block: `logs` as pytest.warns, and `silent`, in which no warning is logged."""

import logging
import re
from contextlib import contextmanager

from gspo.runs.log import recorded


@contextmanager
def logs(match="", level=logging.WARNING):
    """Yields a list that gets the texts of this level, one of which must match in the end."""
    texts = []
    with recorded(lambda record: texts.append(record.getMessage()) if record.levelno == level else None):
        yield texts
    assert any(re.search(match, text) for text in texts), f"{match!r} is in none of {texts}"


@contextmanager
def silent():
    texts = []
    with recorded(lambda record: texts.append(record.getMessage()) if record.levelno > logging.INFO else None):
        yield
    assert texts == []
