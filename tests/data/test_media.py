"""What is no text among the columns of a row."""

import math

import numpy as np
import pytest
from PIL import Image

from gspo.data.prompts import load_demonstrations
from tests.data.rows import load

PNG = b"\x89PNG\r\n\x1a\n"
PICTURE = Image.new("RGB", (2, 2))


def test_images_are_refused_whatever_their_column_is_called(subtests):
    for column, value in (
        ("IMAGES", "anything"), ("pixel_values", [[[0.0]]]), ("x", PICTURE), ("x", [PICTURE]), ("x", PNG),
        ("img", {"bytes": PNG, "path": None}), ("x", {"deep": [{"bytes": b"any", "path": "a"}]}),
        ("clip", {"array": [0.0], "sampling_rate": 16000}), ("x", "data:image/png;base64,iVBOR"),
    ):  # fmt: skip
        with subtests.test(column=column), pytest.raises(ValueError, match=rf"row 0: a column '{column}' .* text alone"):
            load(rows=[{"prompt": "1+1=", column: value}], num_prompts=0)


def test_columns_of_text_are_not_images():
    """Those that are named like one, and hold texts that a reward may read."""
    row = {
        "prompt": "1+1=", "imagery": "a red sun", "audio_transcript": "hello", "image_caption": "a cat", "answer": "a.png",
        "image_path": None, "grid": [[[0, 1]]], "blob": b"abc", "bytes": 3, "image_count": 2,
    }  # fmt: skip
    assert len(load(rows=[row], num_prompts=0)[0]) == 1


def test_what_comes_with_a_prompt_and_is_no_text_is_refused(subtests):
    """Not where all rows are without it, as in one part of a mixed data set."""
    bare = [{"prompt": f"{i}+1=", "completion": "1"} for i in range(6)]
    for column in ("image", "images", "video", "videos", "audio", "audios"):
        with subtests.test(column):
            for value in ("a.png", ["a.png"], {"bytes": b"x", "path": None}, object(), np.array(7)):
                rows = [*(row | {column: None} for row in bare[:3]), *(row | {column: value} for row in bare[3:])]
                with pytest.raises(ValueError, match=rf"row 3: a column '{column}' .* text alone.* drop the column"):
                    load(rows=rows)
            with pytest.raises(ValueError, match=rf"row 3: a column '{column}'"):
                load(rows=rows, loader=load_demonstrations, num_prompts=0)
            for empty in (None, [], "", {}, math.nan, np.float32("nan"), np.array([])):
                assert len(load(rows=[row | {column: empty} for row in bare], num_prompts=0)[0]) == 6
            assert load(rows=[{column: "1+1="}], num_prompts=0, prompt_column=column)[0][0].messages == "1+1="
            played = [{"prompt": "x", column: "org/sandbox:latest"}]
            assert load(rows=played, num_prompts=0, environment="rooms:Room")[0][0].columns == {column: "org/sandbox:latest"}
