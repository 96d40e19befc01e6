"""A disk that takes nothing more."""

import resource
from contextlib import contextmanager


@contextmanager
def full_disk():
    """No file of this process may grow: the kernel refuses each write, as that of a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
