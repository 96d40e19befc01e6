"""A folder with a recipe that works and much that does not: broken files, models and modules."""

import json
import shutil
import textwrap

from gspo.backends.hf.tiny import longest_match_tokenizer
from tests.cli.whole import COLD_START, TRAIN
from tests.tiny_run import ROWS, model

FILES = {
    "recipe.toml": TRAIN.replace("cold/model", "model").replace("steps = 3", "steps = 1").replace("every = 2\nnum", "num"),
    "cold.toml": COLD_START.replace("steps = 30", "steps = 1").replace("16", "4").replace('"cold"', '"run"'),
    "not_toml.toml": "[train\nsteps = 1\n",
    "latin.toml": b"# \xe9\n",
    "flat.toml": "train = 3\n",
    "broken.jsonl": '{"prompt": "1+1="}\n{"prompt": \n',
    "list.jsonl": '{"prompt": "1+1="}\n[1]\n',
    "column.jsonl": '{"promt": "1+1=", "answer": "2"}\n',
    "answer.jsonl": '{"prompt": "1+1=", "anwser": "2"}\n',
    "number.jsonl": '{"prompt": "1+1=", "answer": "2"}\n{"prompt": 7, "answer": "2"}\n',
    "letters.jsonl": '{"prompt": "1+1=", "answer": "2"}\n{"prompt": "zzz", "answer": "2"}\n',
    "bare.jsonl": '{"prompt": "1+1="}\n',
    "nothing.jsonl": '{"prompt": "", "answer": "2"}\n',
    "chat.jsonl": '{"prompt": [{"role": "user", "content": "1+1="}], "answer": "2"}\n',
    "hides.jsonl": '{"prompt": "1+1=", "answer": "2", "completions": "2"}\n',
    "no.parquet": "PAR1",
    "rows.txt": "1+1=",
    "bad_input_module.py": """
        def rows(n): return [{"prompt": "1+1=", "answer": "2"}] * n
        def boom(): raise OSError("no data today")
    """,
    "bad_input_syntax.py": "def f(:\n",
    "a_file": "",
}
FOLDERS = {  # copies of the model: what is taken away, and what is put in
    "no_weights": (["*.safetensors"], {}),
    "pickled": (["*.safetensors"], {"pytorch_model.bin": ""}),
    "no_tokenizer": (["tokenizer*"], {}),
    "bad_config": ([], {"config.json": "{"}),
    "bad_weights": ([], {"model.safetensors": "junk"}),
}
CONFIGS = {  # copies of the model with another configuration
    "unknown_type": {"model_type": "qwen33_moe"},
    "deeper": {"num_hidden_layers": 3, "layer_types": None},
    "wider": {"vocab_size": 10},
}


def fill(folder):
    """Writes all of it into `folder`."""
    tiny = model()
    tiny.save(folder / "model")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    for name, text in FILES.items():
        (folder / name).write_bytes(text if isinstance(text, bytes) else textwrap.dedent(text).encode())
    for name, (without, put_in) in FOLDERS.items():
        shutil.copytree(folder / "model", folder / name)
        for path in [path for pattern in without for path in (folder / name).glob(pattern)]:
            path.unlink()
        for file, text in put_in.items():
            (folder / name / file).write_text(text)
    for name, changes in CONFIGS.items():
        shutil.copytree(folder / "model", folder / name)
        file = folder / name / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    longest_match_tokenizer([chr(i) for i in range(33, 90)]).save_pretrained(folder / "big_tokenizer")
