import pytest

from tests.serving.served import serving


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("serve") / "run", serve={"max_body": 20_000, "max_concurrent": 24}) as served:
        yield served
