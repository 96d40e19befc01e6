"""What other libraries do to transformers, undone."""

import sys

from transformers import masking_utils


def undo_patches() -> None:
    """Puts back a function of transformers that `import art` (openpipe-art) replaces by one for transformers 4. No model of
    transformers 5 runs with that.
    """
    patches = sys.modules.get("art.transformers.patches")
    if patches is not None:
        masking_utils._preprocess_mask_arguments = patches._preprocess_mask_arguments
