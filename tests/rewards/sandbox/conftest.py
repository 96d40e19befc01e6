import pytest

from tests.rewards.sandbox.boxes import box_of


@pytest.fixture(params=["bwrap", "landlock"])
def box(request):
    """Each sandbox of this machine."""
    return box_of(request.param)
