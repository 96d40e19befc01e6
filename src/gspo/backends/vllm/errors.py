"""Engine errors."""

from __future__ import annotations

from gspo.interfaces import SamplerError


class EngineError(SamplerError):
    """The engine died, hangs, or gives an invalid answer. A restart may help."""


class Refused(EngineError):
    """The engine rejects a request (status 400 to 499). Another engine may take it; if none does, the request is wrong."""


def blamed(error: Exception) -> EngineError:
    """The error as an EngineError, with the original as its cause."""
    if isinstance(error, EngineError):
        return error
    made = EngineError(f"{type(error).__name__}: {error}")
    made.__cause__ = error
    return made
