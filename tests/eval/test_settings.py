from pathlib import Path

import pytest

from gspo.eval.settings import Options, configured, folder_of

pytestmark = pytest.mark.usefixtures("all_installed")
FILE = """
[judge]
model = "m"
[model]
path = "runs/first/model"
dtype = "bfloat16"
[task]
source = "rows.jsonl"
system = "Think."
[reward]
functions = ["exact"]
workers = 3
[sampler]
batch_size = 7
[eval]
num_generations = 5
temperature = 0.9
"""


def of(benchmark="aime24", model="m", **more):
    return Options(model, benchmark, **more)


def test_a_benchmark_says_how_many_replies_and_how_long():
    config = configured(of(), {})
    assert (config.eval.num_generations, config.eval.max_completion_length) == (32, 38_912)
    assert (config.task.source, config.reward.functions, config.model.path) == ("benchmark:aime24", ["math"], "m")
    config = configured(of("livecodebench", of_source=(("release", "v6"),)), {})
    assert (config.eval.num_generations, config.eval.max_completion_length) == (8, 32_768)
    assert config.task.config == {"release": "v6"}


def test_a_preset_is_that_of_the_model_card():
    config = configured(of(preset="qwen3"), {}).eval
    assert (config.temperature, config.top_p, config.top_k, config.max_completion_length) == (0.6, 0.95, 20, 38_912)
    assert configured(of("humaneval", preset="qwen3"), {}).eval.max_completion_length == 32_768
    config = configured(of(preset="qwen3"), {"eval.temperature": "0"}).eval  # greedy: the rest has no effect
    assert (config.temperature, config.top_p, config.top_k, config.max_completion_length) == (0, 1.0, 0, 38_912)
    assert config.num_generations == 1


def test_what_is_typed_comes_before_preset_and_file(tmp_path):
    (tmp_path / "run.toml").write_text(FILE)
    model = str(tmp_path / "run.toml")
    config = configured(of(model=model), {})
    assert (config.model.dtype, config.task.system, config.reward.workers) == ("bfloat16", "Think.", 3)
    assert config.sampler.batch_size == 7
    assert (config.reward.functions, config.eval.num_generations, config.eval.temperature) == (["math"], 5, 0.9)
    config = configured(of(model=model, preset="qwen3"), {"eval.num_generations": "2", "eval.top_k": "3"})
    assert (config.eval.temperature, config.eval.num_generations, config.eval.top_k) == (0.6, 2, 3)


def test_of_a_file_of_a_run_only_what_an_evaluation_reads_is_taken(tmp_path):
    file = "[model]\npath = 'm'\n[eval]\nnum_prompts = 0\nevery = 0\n[[stage]]\nat = 2\ntemperature = 0.5\n"
    (tmp_path / "run.toml").write_text(file)
    config = configured(of(model=str(tmp_path / "run.toml")), {})
    assert (config.model.path, config.eval.num_generations, config.stage) == ("m", 32, ())
    assert config.eval.num_prompts > 0


def test_the_sandbox_of_a_file_is_taken_where_programs_run(tmp_path):
    (tmp_path / "run.toml").write_text('[model]\npath = "m"\n[reward]\nfunctions = ["code"]\n[code]\nsandbox = "landlock"\n')
    model = str(tmp_path / "run.toml")
    assert configured(of("humaneval", model=model), {}).code.sandbox == "landlock"
    assert configured(of("humaneval", model=model), {"code.sandbox": "bwrap"}).code.sandbox == "bwrap"
    assert configured(of("aime24", model=model), {}).code.sandbox == "auto"
    with pytest.raises(ValueError, match=r"code.sandbox = 'bwrap' has no effect: no reward runs programs"):
        configured(of("aime24"), {"code.sandbox": "bwrap"})
    with pytest.raises(ValueError, match=r"--code\.cpu_seconds: has no effect on an evaluation"):
        configured(of("humaneval"), {"code.cpu_seconds": "3"})


def test_what_cannot_be_is_refused(subtests):
    for options, fields, why in (
        (of("aime42"), {}, "benchmark 'aime42': is none of aime24"),
        (of(preset="qwen4"), {}, "--preset 'qwen4': is none of qwen3"),
        (of(), {"reward.functions": "exact"}, "--reward.functions: has no effect on an evaluation with --benchmark"),
        (of(), {"eval.temperature": "0", "eval.top_k": "3"}, "eval.top_k = 3 has no effect"),
        (of(url="http://host/v1"), {"model.dtype": "bfloat16"}, "--model.dtype: has no effect on the endpoint"),
        (of(), {"sampler.timeout": "30"}, "sampler.timeout = 30.0 has no effect"),
        (of("humaneval", of_source=(("release", "v5"),)), {}, "--release v5: benchmark humaneval has no such option"),
        (of(url="localhost:8000/v1"), {}, "--url = 'localhost:8000/v1': no address of a server"),
        (of(), {"eval.num_prompts": "9"}, "--eval.num_prompts: has no effect on an evaluation with --benchmark"),
        (of(), {"eval.temprature": "0.5"}, r"eval.temprature = .*did you mean eval.temperature\?"),
        (of(model="nowhere.toml"), {}, "no such configuration file"),
    ):
        with subtests.test(why), pytest.raises(ValueError, match=why):
            configured(options, fields)


def test_an_endpoint_has_a_time_limit_and_a_number_of_requests():
    typed = {"sampler.timeout": "30", "sampler.batch_size": "7"}
    sampler = configured(of(url="http://host/v1"), typed).sampler
    assert (sampler.timeout, sampler.batch_size) == (30.0, 7)


def test_the_folder_is_named_after_benchmark_and_model():
    for options, folder in (
        (of(model="org/Qwen3-8B"), "runs/eval/aime24-Qwen3-8B"),
        (of(dir=Path("x")), "x"),
        (of("data/my.jsonl", "runs/first/model"), "runs/eval/my-first-model"),
    ):
        assert folder_of(options, configured(options, {})) == Path(folder)
