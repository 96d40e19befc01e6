import shutil
import tempfile
from pathlib import Path

import pytest

from tests.sandbox.boxes import box_of


@pytest.fixture(params=["bwrap", "landlock"])
def box(request):
    """Each sandbox of this machine."""
    return box_of(request.param)


@pytest.fixture(scope="module")
def folder_of_all():
    """A folder that any user may enter: pytest's own are closed to the users that sandboxes take."""
    folder = Path(tempfile.mkdtemp(prefix="gspo-host-", dir="/var/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)
