"""What goes wrong with an engine."""

from __future__ import annotations

from gspo.interfaces import SamplerError


class EngineError(SamplerError):
    """The engine died, hangs, or answers what cannot be: starting it again may help."""


class Refused(EngineError):
    """It refuses a request (status 400 to 499). Another engine may take it; where none does, the request is wrong."""


def blamed(error: Exception) -> EngineError:
    """The same error, as one of the engine with which it came about."""
    if isinstance(error, EngineError):
        return error
    made = EngineError(f"{type(error).__name__}: {error}")
    made.__cause__ = error
    return made
