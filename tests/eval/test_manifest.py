import pytest

from gspo.config.files import from_dict
from gspo.eval.manifest import NAME, begin, manifest

ROUNDED = {"quantization": "_per_tensor", "kv_cache_dtype": ""}
ROWS = [{"id": "1", "prompt": "1 + 1?", "answer": "2"}]


def made(rows=ROWS, url="", version="", computation=(), **sections):
    sections["eval"] = {"num_generations": 4} | sections.get("eval", {})
    config = from_dict({"model": {"path": "m"}, "task": {"source": "benchmark:aime24"}} | sections)
    return manifest("aime24", config, rows, url, version, dict(computation), {"sandbox": "bwrap"})


def test_it_holds_what_an_evaluation_was():
    this = made(task={"source": "benchmark:aime24", "config": {"data": "x.jsonl", "api_key": "sk-123456789"}})
    assert (this["title"], this["samples"], this["scoring"]["sandbox"]) == ("AIME'24", 4, "bwrap")
    assert this["prompt"]["first"] == "1 + 1?"
    assert len(this["data"]["sha256"]) == 64 and this["data"]["options"]["data"] == "x.jsonl"
    assert "sk-123456789" not in str(this)
    assert "user:word" not in str(made(url="http://user:word@host/v1"))


def test_another_evaluation_is_not_mixed_with_it(tmp_path, subtests):
    begin(tmp_path, made())
    for other, key in (
        (made(rows=[{"id": "1", "prompt": "1 + 1?", "answer": "3"}]), "data"),
        (made(eval={"temperature": 0.5}), "sampling"),
        (made(version="commit 2"), "weights"),
        (made(computation={"dtype": "bfloat16"}), "computation"),
        (made(task={"source": "benchmark:aime24", "system": "Think."}), "prompt"),
    ):
        with subtests.test(key), pytest.raises(ValueError, match=f"holds another evaluation: {key} was"):
            begin(tmp_path, other)
    assert begin(tmp_path, made() | {"gspo": "another"}) is True


def test_another_precision_of_vllm_is_another_evaluation(tmp_path):
    """Manifests of engines that round nothing are what they were."""
    plain = made(sampler={"engine": "vllm"})
    rounded = [made(sampler={"engine": "vllm", name: "fp8" + end}) for name, end in ROUNDED.items()]
    assert [set(each["sampling"]) - set(plain["sampling"]) for each in rounded] == [{name} for name in ROUNDED]
    begin(tmp_path, plain)
    for each in rounded:
        with pytest.raises(ValueError, match=r"holds another evaluation: sampling was"):
            begin(tmp_path, each)
    assert made(sampler={"engine": "vllm", "quantization": "fp8_per_tensor"}, url="http://x") == made(url="http://x")


def test_a_folder_of_something_else_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="cannot be made"):
        begin(tmp_path / "file", made())
    with pytest.raises(ValueError, match="something else than an evaluation"):
        begin(tmp_path, made())
    (tmp_path / NAME).write_text("{")
    with pytest.raises(ValueError, match=f"is not the folder of an evaluation, for its {NAME} cannot be read"):
        begin(tmp_path, made())
