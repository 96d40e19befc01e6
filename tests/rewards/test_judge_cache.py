import sqlite3
import subprocess
import sys
from contextlib import closing

from gspo.rewards import judge_cache
from gspo.rewards.judge_cache import Cache, key_of
from tests.rewards.endpoint import listening, score

ASKS = """
import asyncio, sys
from gspo.rewards.judge import Judge
judge = Judge(model="m", url=sys.argv[1], key_variable="", rubric="r", cache=sys.argv[2])
print(asyncio.run(judge(["?"] * 40, [str(i % 20) for i in range(40)])) == [0.3] * 40)
"""


def test_processes_share_a_cache(tmp_path):
    path = tmp_path / "answers.sqlite"
    with listening(lambda body: score(3)) as endpoint:
        command = [sys.executable, "-c", ASKS, endpoint.url, str(path)]
        several = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(3)]
        assert [process.communicate()[0].strip() for process in several] == [b"True"] * 3
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("SELECT count(*) FROM answers").fetchone() == (20,)


def test_equal_questions_have_one_key():
    assert key_of({"a": 1, "b": "é"}) == key_of({"b": "é", "a": 1}) != key_of({"a": 1, "b": "e"})
    assert len(key_of("\ud83d")) == 64  # half a character is no error


def test_a_full_cache_in_memory_keeps_what_it_has(monkeypatch):
    monkeypatch.setattr(judge_cache, "PAGES", 8)
    cache = Cache(None, "judge.cache")
    for number in range(100):
        cache.put(str(number), "x" * 1000)
    assert cache.get("0") == "x" * 1000 and cache.get("99") is None
