"""Checks of single settings: each refuses what it is for, with the remedy."""

from gspo.config.files import from_dict

JUDGE = {"model": "m", "rubric": "r"}
BY_JUDGE, BY_MODEL = {"functions": ["judge"]}, {"functions": ["model"]}
NO_SERVER = "no address of a server; expected one such as http://"
READ = [
    ("judge.model is required", {"reward": BY_JUDGE}),
    ("judge.rubric is required", {"reward": BY_JUDGE, "judge": JUDGE | {"rubric": " "}}),
    ("judge.request.n: is set by the judge", {"reward": BY_JUDGE, "judge": JUDGE | {"request": {"n": 2}}}),
    ("reward_model.path is required", {"reward": BY_MODEL}),
    ("retries is for a server", {"reward": BY_MODEL, "reward_model": {"path": "m", "retries": 9}}),
    ("names labels by number", {"reward": BY_MODEL, "reward_model": {"path": "m", "url": "http://u", "label": "kind"}}),
    (
        r"'exakt' is none of .*, did you mean exact\? A function of your own .* module:function, such as my_task:exakt",
        {"reward": {"functions": ["exakt"]}},
    ),
    ("a function of your own is written module:function, such as my.task:rew", {"reward": {"functions": ["my.task.rew"]}}),
    ("verifier is unknown, did you mean verifiers:x", {"task": {"source": "verifier:x"}}),
    ("log.dir = '': name a folder", {"log": {"dir": " "}}),
    ("task.system = 'none': would be the message itself; for none set it to", {"task": {"system": "none"}}),
    ("eval.temperature = 1e-320: must be 0, or at least 0.01", {"eval": {"temperature": 1e-320}}),
    (rf"judge\.url = .*: {NO_SERVER}", {"judge": {"url": "x"}}),
    (rf"reward_model\.url = .*: {NO_SERVER}", {"reward_model": {"url": "x"}}),
    (rf"teacher\.url = .*: {NO_SERVER}", {"teacher": {"url": "x"}}),
    *(
        (rf"sampler\.urls.* = .*: {NO_SERVER}", {"sampler": {"urls": [url]}})
        for url in (":::", "", "127.0.0.1:8000", "http://", "ftp://x", "http://x:99999", "http://x:0", "http://a b", "//x")
    ),
]


def test_what_is_refused_as_it_is_read(refuses):
    refuses(from_dict, READ)


def test_a_module_of_the_users_own_is_no_misspelt_library(tmp_path, monkeypatch, refuses):
    source = {"task": {"source": "reasoning:rows"}}
    monkeypatch.chdir(tmp_path)
    refuses(from_dict, [("reasoning is unknown, did you mean reasoning_gym:rows", source)])
    (tmp_path / "reasoning.py").write_text("raise SystemExit('imported')")
    assert from_dict(source).task.source == "reasoning:rows"
    (tmp_path / "reasoning-gym").mkdir()  # a folder, perhaps of the library's own sources
    refuses(from_dict, [("did you mean reasoning_gym:gcd", {"task": {"source": "reasoning-gym:gcd"}})])
