"""Bad input: through the command line and from Python. Each message names the key, the value and the remedy."""

import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import gspo
from gspo.cli.main import main
from tests import bad_files
from tests.conftest import seed
from tests.tiny_run import ROWS, likes_a, model, settings


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bad_input")
    bad_files.fill(folder)
    return folder


@pytest.fixture(scope="session")
def done(place):
    """A finished run of each kind."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert main(["train", "recipe.toml", "--log.dir=done"]) == 0
        assert main(["sft", "cold.toml", "--log.dir=imitated"]) == 0
    return place


@pytest.fixture
def weights_read(monkeypatch):
    """The models whose weights were read, by path. The hub is out of reach."""
    read, real = [], AutoModelForCausalLM.from_pretrained
    noted = lambda path, **more: read.append(path) or real(path, **more)  # noqa: E731
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", noted)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return read


# A command line, with {} for `train recipe.toml`, and its message.
COMMANDS = {
    "": "COMMAND; see `gspo --help`",
    "trian recipe.toml": "invalid choice: 'trian' .choose from 'train'.*did you mean train",
    "plan": "required: CONFIG.toml; see `gspo plan --help`",
    "train": "give a configuration file or recipe:NAME .*, or --model MODEL --data DATA --reward REWARD",
    "{} more.toml": "more.toml: unexpected argument",
    "{} --lr 1e-5": "--lr: unknown option; fields are given as --section.key VALUE, did you mean --optimizer.lr?",
    "{} --resum": "--resum: unknown option.*see `gspo train --help`",
    "{} --train.steps": "--train.steps: a value is missing",
    "eval recipe.toml --resume": "--resume: unknown option",
    "train --config recipe.toml": "--config: unknown option; .*, and the file without a name: `gspo train FILE.toml`",
    "demo --steps 3": "--steps: unknown option; see `gspo demo --help`",
    "config recipe.toml rollout.n=8": "neither .*what other programs call n is rollout.num_generations",
    "eval recipe.toml --out": "--out: expected one argument",
}
FILE = {
    "train missing.toml": "missing.toml: no such configuration file",
    "train .": r"\.: is a folder, and no configuration file: that of a model is given as model\.path",
    "train done --resume": "done: is a folder, and no configuration file: give done/config.toml",
    "train latin.toml": "latin.toml: cannot be read: 'utf-8' codec",
    "train not_toml.toml": "not_toml.toml: not valid TOML: .*line 1",
    "train flat.toml": r"train = 3: expected a table \[train\]",
}
KEYS = {
    "{} --optimizer.learning_rate 1": "unknown key; what other programs call learning_rate is optimizer.lr here",
    "{} --task.config.min_n 3": r"unknown key; give the whole table: task.config = \{min_n = ...\}",
}
TYPES = {
    "{} --log.rollouts yes": "log.rollouts = 'yes': must be true or false",
    "{} --task.config 3": r"task.config = 3: must be a table, such as \{name = 3\}",
}
VALUES = {  # that do not go together, would have no effect, or that no program could do
    "{} --model.path ''": "model.path is required: set it to the folder or Hugging Face id of a model",
    "{} --task.source ''": "task.source is required",
    "sft cold.toml --eval.every 2": "eval.every = 2 has no effect: `gspo sft` imitates rows",
    "eval recipe.toml --eval.num_prompts 0": "eval.num_prompts = 0: nothing is held out to evaluate on",
    "{} --optimizer.lr 1e308": r"optimizer.lr = 1e\+308: must be at most 10",
    "{} --task.prompt_column \x1b[31m --task.source column.jsonl": r"there is no column '\\x1b\[31m'",
    "{} --rollout.stop ['']": r"rollout.stop = \[''\]: an empty string would end every completion at once",
    "{} --rollout.num_prompts 6": "ini_batches = 4 equal updates: make it a multiple of 4, or set .* to 1 or 2 or 3",
    "config --algorithm.name rloo": "algorithm.name = 'rloo': allowed are gspo, gspo_token, gspo_turn, grpo",
    "{} --reward.functions []": r"reward.functions = \[\]: name at least one",
    "{} --reward.weights 1,2": r"reward.weights = \[1.0, 2.0\]: 1 reward functions need as many weights: exact",
    "{} --reward.weights 0": r"reward.weights = \[0.0\]: at least one must differ from 0",
    "{} --reward.functions task": 'rows.jsonl has no scorer of its own for "task"; use "exact" or "math"',
    "{} --log.trackers wandbb": r"log.trackers: 'wandbb' is none of .* did you mean wandb\?",
}
PLACES = {  # folders and files of the command line
    "{} --resume": "log.dir = 'run': no such run folder to resume; start it without --resume",
    "{} --log.dir a_file/run": "log.dir = 'a_file/run': .*a_file is a file; give another log.dir",
    "{} --log.dir model": "log.dir = 'model': the folder exists and is not empty; go on .*--resume",
    "{} --log.dir model --resume": "log.dir = 'model': not a run folder, config.toml is missing",
    "eval recipe.toml --out a_file": "--out a_file: exists already; give another name",
    "eval recipe.toml --out a_file/x.jsonl": "--out a_file/x.jsonl: cannot be written",
    "report nowhere": "nowhere: no metrics.jsonl with at least one step; give the folder of a run",
    "demo --dir a_file": "a_file exists: give another --dir",
}
MODEL = {
    "nowhere": "model.path = 'nowhere': neither a folder here nor a model of the Hugging Face hub",
    "./nowhere": "model.path = './nowhere': no such folder",
    "nowhere.gguf": "model.path = 'nowhere.gguf': no such file",
    "no_weights": r"model.path = 'no_weights': the folder has no weights \(\*.safetensors\)",
    "pickled": r"pickled only \(pytorch_model.bin\).* set model.allow_pickle = true if you trust them",
    "unknown_type": "version of transformers does not know its model type; update transformers. .*qwen33_moe",
    "no_tokenizer": r"model.path = 'no_tokenizer': the folder has no tokenizer \(tokenizer.json\); set model.tokenizer",
    "bad_config": "model.path = 'bad_config': cannot be loaded .*not a valid JSON file",
    "model --model.revision v9": "model.revision = 'v9': has no effect on the folder model; remove it",
    "model --model.tokenizer ./nowhere": "model.tokenizer = './nowhere': .* no such folder",
    "model --model.device gpu": "model.device = 'gpu': allowed are auto, cpu, cuda, cuda:1, mps",
}
WEIGHTS = {  # what only the weights show
    "bad_weights": "model.path = 'bad_weights': cannot be loaded as a causal language model",
    "deeper": "model.path = 'deeper': the weights do not fit Qwen3MoeForCausalLM: 11 tensors are missing",
    "wider": "the weights do not fit .* 1 tensors are missing or of another shape .model.embed_tokens.weight",
    "model --model.tokenizer big_tokenizer": "the tokenizer has 'Y' with id 58, but the model embeds only 19 ",
}
SOURCE = {
    "rows.txt": r"task.source = 'rows.txt': files can be .jsonl, .json, .parquet, .csv, not .txt",
    "rows.jsonl --model.path nobody/nothing --reward.answer_column solution": "no column 'solution' with the right answer",
    "broken.jsonl": r"broken.jsonl, line 2: not valid JSON: Expecting value \(column 11\)",
    "number.jsonl": "number.jsonl, row 1: the prompt .column 'prompt'. is an int; expected a string or a list of chat mess",
    "nothing.jsonl": "nothing.jsonl, row 0: the prompt .column 'prompt'. is empty",
    "letters.jsonl": "letters.jsonl, row 1: the prompt .* cannot be encoded by the tokenizer .*: 'zzz'",
    "chat.jsonl": "chat.jsonl, row 0: .* no chat template is in use: give the prompt as a string",
    "hides.jsonl": "hides.jsonl, row 0: a column 'completions' would hide the argument of that name",
    "answer.jsonl": r"there is no column 'answer' with the right answer, did you .* reward.answer_column to one of: anwser",
    "bare.jsonl": "bare.jsonl, row 0: there is no column 'answer' with the right answer; every row needs it",
    "answer.jsonl --reward.answer_column anwser --eval.every 1": "1 rows are too few to hold some out .* task.eval_source",
    "bad_input_module:rows": r"task.config = \{\}: bad_input_module:rows cannot be called with it: missing .* 'n'",
    "bad_input_module:boom": "bad_input_module:boom raised OSError: no data today",
    "rows.jsonl --task.config {name='main'}": r"task.config = \{'name': 'main'\} has no effect: the source takes no options",
    "rows.jsonl --task.eval_source none.jsonl": "task.eval_source = 'none.jsonl': there is no such file",
}
PARQUET = {"no.parquet": "no.parquet: not a Parquet file"}
FUNCTIONS = {  # what the processes find that compute rewards
    "bad_input_module:nope": "reward.functions = .* bad_input_module has no function 'nope'",
    "no_such_module:f": "reward.functions = 'no_such_module:f': there is no module",
    "bad_input_syntax:f": "importing 'bad_input_syntax' failed: SyntaxError",
}
GYM = {
    "count_bit": r"reasoning-gym has no such task, did you mean count_bits\?",
    "count_bits --task.config {min=3}": r"task.config.min: .* did you mean min_n\?",
}
OTHER = {
    "sft cold.toml --task.completion_column completion": "no column 'completion'; set task.completion_column to one of: ",
    "eval recipe.toml --task.source list.jsonl": "list.jsonl, line 2: expected an object",
    "eval recipe.toml --task.source number.jsonl --task.prompt_column answer": "number.jsonl.*too few rows to hold out",
    "{} --log.dir done": "log.dir = 'done': the folder exists and is not empty; go on with that run by --resume",
    "{} --log.dir done --resume --optimizer.lr 0.1": "lr = 0.1 cannot be changed in a resumed run: .* began with 0.001",
    "{} --log.dir imitated --resume": "cannot be changed in a resumed run",
    "sft cold.toml --log.dir done --resume": "cannot be changed in a resumed run",
}


def split(words):
    """As a shell does, but quotes within a word stay."""
    return [word if "'" in word[1:-1] else word.strip("'") for word in words.split()]


def rows(table, form="{}", early=True):
    return [(form.format(words), message, early) for words, message in table.items()]


QUICK = {
    "commands": rows(COMMANDS), "file": rows(FILE), "keys": rows(KEYS), "types": rows(TYPES),
    "values": rows(VALUES), "places": rows(PLACES), "model": rows(MODEL, form="{{}} --model.path {}"),
    "source": rows(SOURCE, form="{{}} --task.source {}"), "other": rows(OTHER),
}  # fmt: skip
LONGER = [  # each takes longer than to set it up
    *rows(WEIGHTS, form="{{}} --model.path {}", early=False),
    *rows(PARQUET, form="{{}} --task.source {}"),
    *rows(FUNCTIONS, form="{{}} --task.source rows.jsonl --reward.functions {}"),
]
UNKNOWN = rows(GYM, form="{{}} --reward.functions task --task.source reasoning_gym:{}")


def command_refuses(case, done, weights_read, capsys):
    words, message, early = case
    seed()
    weights_read.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(done)
        patch.setattr(sys, "path", [*sys.path])
        refuses(split(words.replace("{} ", "train recipe.toml ", 1)), message, capsys)
    assert not (early and weights_read), "weights may take minutes to read: what can be seen without them comes first"


@pytest.mark.parametrize("table", QUICK)
def test_a_command_refuses(done, weights_read, capsys, subtests, table):
    for case in QUICK[table]:
        with subtests.test(words=case[0]):
            command_refuses(case, done, weights_read, capsys)


@pytest.mark.parametrize("case", LONGER, ids=lambda case: case[0])
def test_a_command_refuses_what_it_sees_later(done, weights_read, capsys, case):
    command_refuses(case, done, weights_read, capsys)


@pytest.mark.parametrize("case", UNKNOWN, ids=lambda case: case[0])
def test_a_command_refuses_a_task_that_reasoning_gym_does_not_have(done, weights_read, capsys, case):
    command_refuses(case, done, weights_read, capsys)


def refuses(words, message, capsys):
    capsys.readouterr()  # what was said before
    try:
        returned, begun = main(words), Path("run").exists()
    finally:
        shutil.rmtree("run", ignore_errors=True)  # or the next case would stumble over it
    error = capsys.readouterr().err
    assert returned == 2
    assert re.search(message, error, re.DOTALL), error
    assert error.count("gspo: error: ") == 1
    assert "Traceback" not in error
    assert not begun


def test_a_data_set_that_the_hub_does_not_have(place, weights_read, monkeypatch, capsys):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(place)
    words = ["train", "recipe.toml", "--task.source=nobody/nothing", "--task.split=test", "--task.config={name='main'}"]
    message = r"task.source = 'nobody/nothing': no data set could be loaded with split = 'test' and .*'name': 'main'"
    refuses(words, message, capsys)


def test_debug_shows_where_it_happened_and_changes_no_status(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    for words in (["--debug", "train", "recipe.toml"], ["train", "recipe.toml", "--debug"]):
        assert main([*words, "--task.source=x.jsonl"]) == 2
        error = capsys.readouterr().err
        assert error.startswith("Traceback") and "ValueError: task.source = 'x.jsonl': there is no such file" in error


TINY = model()
PYTHON = {  # what differs from a call that works, and its message
    "no tokenizer": ({"tokenizer": None}, "tokenizer: a loaded model needs its tokenizer: pass tokenizer="),
    "tokenizer alone": ({"model": None}, "tokenizer: it goes with a loaded model"),
    "tokenizer beside a name": ({"model": "model"}, "tokenizer: it goes with a loaded model; beside a model's name"),
    "model of another library": ({"model": torch.nn.Linear(2, 2)}, "model: expected one of transformers .*, got a Linear"),
    "model section": ({"model": {"path": "model"}}, r'model: expected a folder.* config=\{"model": \{...\}\}'),
    "rows for a model": ({"model": ROWS, "tokenizer": None}, "model: expected a folder, an id .*, got a list"),
    "no data": ({"dataset": None}, "task.source is required"),
    "string": ({"dataset": "rows.jsonl"}, "the data set: expected a list of dicts or a datasets.Dataset, got a str"),
    "dict of columns": ({"dataset": {"prompt": ["1"]}}, "got a dict with prompt: .*a dict for each row"),
    "no prompt": ({"dataset": [{"question": "1"}]}, "row 0: there is no column 'prompt'; set task.prompt_column to one of"),
    "held-out of two kinds": (
        {"eval_dataset": ROWS, "eval": {"every": 1}, "task": {"eval_source": "rows.jsonl"}},
        "task.eval_source = 'rows.jsonl': eval_dataset is given, which takes its place",
    ),
    "processes for functions": ({"config": {"reward": {"workers": 3}}}, "reward.workers = 3 has no effect: functions given"),
    "held-out without evaluation": ({"eval_dataset": ROWS}, "eval_dataset is given but eval.every = 0: set eval="),
    "empty held-out": ({"eval_dataset": [], "eval": {"every": 1}}, "the held-out data set: there are no rows"),
    "reward by name": ({"reward": "exact"}, r"reward = 'exact': expected a function .* config=\{\"reward\": \{\"functions"),
    "reward list": ({"reward": [likes_a, 1.0]}, "reward = 1.0: expected a function"),
    "no reward": ({"reward": []}, 'given from Python. has no scorer of its own for "task"; .*, or pass reward='),
    "weights": ({"config": {"reward": {"weights": [1, 2]}}}, r"reward.weights = \[1.0, 2.0\]: 1 reward .*weights: likes_a"),
    "section": ({"rollout": "many"}, r"rollout = 'many': expected a table \[rollout\]"),
    "task section": ({"task": 3}, r"task = 3: expected a table \[task\]"),
    "config of another type": ({"config": 3}, "config: expected a TOML file, a Config or nested dicts, got an int"),
}


def test_a_call_refuses(tmp_path, weights_read, subtests):
    for case, (changes, message) in PYTHON.items():
        with subtests.test(case=case), pytest.MonkeyPatch.context() as patch:
            seed()
            weights_read.clear()
            folder = tmp_path / case
            folder.mkdir()
            patch.chdir(folder)
            good = {"model": TINY.model, "tokenizer": TINY.tokenizer, "dataset": ROWS, "reward": likes_a}
            good["config"] = settings(folder / "run", eval={"every": 0})
            with pytest.raises(ValueError, match=f"(?s){message}") as refused:
                gspo.train(**good | changes)
            assert "--" not in str(refused.value), "flags are of the command line"
            assert not any(folder.iterdir())
            assert not weights_read


def test_a_data_set_with_splits(tmp_path):
    datasets = pytest.importorskip("datasets")
    splits = datasets.DatasetDict(train=datasets.Dataset.from_list(ROWS), test=datasets.Dataset.from_list(ROWS))
    given = {"tokenizer": TINY.tokenizer, "config": settings(tmp_path / "run")}
    message = "got a DatasetDict with train, test: choose one split"
    with pytest.raises(ValueError, match=message):
        gspo.train(TINY.model, splits, likes_a, **given)
    with pytest.raises(ValueError, match=message):
        gspo.sft(TINY.model, splits, tokenizer=TINY.tokenizer, log={"dir": tmp_path / "run"})
