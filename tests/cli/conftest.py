import json

import pytest

from gspo.cli.main import main
from tests.cli.whole import COLD_START, TRAIN
from tests.tiny_run import model


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """A folder in which `gspo sft`, `train`, `train --resume`, `eval` and `report` have run, through files alone."""
    folder = tmp_path_factory.mktemp("cli")
    model().save(folder / "model")
    rows = [{"prompt": f"{i}+{j}=", "answer": str(i)} for j in range(10) for i in range(10)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "cold.toml").write_text(COLD_START)
    (folder / "train.toml").write_text(TRAIN)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["sft", "cold.toml"]) == 0
        assert main(["train", "train.toml"]) == 0
        (folder / "first.jsonl").write_text((folder / "run" / "metrics.jsonl").read_text())
        assert main(["train", "train.toml", "--resume", "--train.steps=4"]) == 0
        words = ["--model.path=run/model", "--eval.num_generations=3", "--out=out/completions.jsonl"]
        assert main(["eval", "train.toml", *words]) == 0
        assert main(["report", "run", "cold"]) == 0
    return folder
