"""Here figures are what is tested: every one is drawn."""

import pytest

from gspo.report import plots


@pytest.fixture(autouse=True, scope="module")
def own_figures(every_figure):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "draw", every_figure)
        yield
