"""Rows of a data set, in memory and in files, and what is loaded of them."""

import csv
import json

import pytest

from gspo.config.rollout import TaskConfig
from gspo.config.training import EvalConfig
from gspo.data.chat_template import Encoder
from gspo.data.prompts import load_prompts
from gspo.data.splits import read_tables
from tests.data.tools import characters

datasets = pytest.importorskip("datasets")
ROWS = [{"prompt": f"{i}+1=", "answer": i + 1, "completion": str(i + 1)} for i in range(40)]


def load(
    source="", rows=None, eval_rows=None, limit=None, num_prompts=256, every=0, loader=load_prompts, tokenizer=None, **task
):
    task = TaskConfig(source=str(source), **task)
    tables = read_tables(task, EvalConfig(num_prompts=num_prompts, every=every), rows, eval_rows)
    return loader(task, tables, Encoder(tokenizer or characters(), task, "Tags."), limit)


def write(path, rows):
    if path.suffix == ".jsonl":
        path.write_text("\n\n".join(map(json.dumps, rows)) + "\n")
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    else:
        datasets.Dataset.from_list(rows).to_parquet(str(path))
    return path
