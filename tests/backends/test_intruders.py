"""Libraries that change transformers under us."""

import sys
from types import SimpleNamespace

from transformers import masking_utils

from tests.serving.served import tiny


def test_arts_patch_for_transformers_4_is_undone(monkeypatch):
    ours = masking_utils._preprocess_mask_arguments
    monkeypatch.setattr(masking_utils, "_preprocess_mask_arguments", lambda: None)  # as after `import art`
    monkeypatch.setitem(sys.modules, "art.transformers.patches", SimpleNamespace(_preprocess_mask_arguments=ours))
    tiny()  # which runs the model
    assert masking_utils._preprocess_mask_arguments is ours
