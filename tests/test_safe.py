"""What others wrote does no harm: to a terminal, to a secret, to a file that a link points at."""

import os
import stat

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import gspo
from gspo.config.files import load, to_dict
from gspo.config.names import all_keys
from gspo.config.recipes import recipes
from gspo.safe import HIDDEN, hidden_keys, own_folder, replace_file, visible, without_logins, without_secrets
from tests.tiny_run import model
from tests.tiny_run import settings as tiny_settings


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("two\nlines\tand é 漢 🙂 עברית", "two\nlines\tand é 漢 🙂 עברית"),
        ("dos\r\nline", "dos\nline"),
        ("over\rwritten", "over\\x0dwritten"),
        ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        ("\x9b31m \x7f \x00", "\\x9b31m \\x7f \\x00"),
        ("\u2028\u2029\x85", "\\u2028\\u2029\\x85"),
        ("a\u202ecba\u2066", "a\\u202ecba\\u2066"),
        ("half \ud83d", "half \\ud83d"),
        (3, "3"),
    ],
)
def test_what_a_terminal_would_obey_is_shown(text, shown):
    assert visible(text) == shown


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(exclude_categories=())))
@example("\x1b\ud800\x9b")
def test_nothing_invisible_is_left(text):
    shown = visible(text)
    shown.encode()  # no half pair is left
    assert not any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 for c in shown if c not in "\n\t")
    assert visible(shown) == shown


SECRET = "aB3dE5fG7hJ9kL2mN4pQ6rS8"
FORMS = ["postgres://me:{}@db/x", "https://host/v1?key={}&n=1", "https://host/v1?n=1&sig={}"]
NAMES = ["hfToken", "accessToken", "openai_api_key", "dbPassword", "session_cookie", "X-Api-Key", "clientSecret"]
NAMES += ["wandb_key", "user_token", "github_pat", "db_pwd", "bearer", "passcode", "proxy_auth", "api_key_list", "ssh_key"]


def test_secrets_are_hidden_by_their_keys_and_logins_wherever_they_are():
    table = {
        "auth": {"user": "me", "list": ["d"]}, "api_keys": ["sk-1"], "openai_api_key2": "i", "Authorization": "Bearer c",
        "url": "https://me:pass@host/v1?api_key=f&n=2", "deep": [{"secret": "g"}, "postgres://u:p@db"],
        "key_variable": "OPENAI_API_KEY", "max_tokens": 9, "pad_token": "<pad>", "mask_token": "[MASK]",
        "password_length": "8", "label_key": "answer", "sort_keys": "a, b", "stop_token_list": ["s"], "compass": "north",
        "first_pass": "fast", "tokenizer": "Qwen/Qwen3-0.6B", "monkey": "ape", "key": 5, "empty_key": "",
        "plain": "me@example.org http://host/a@b, key=3",
    }  # fmt: skip
    shown = without_secrets(table)
    assert shown == table | {
        "auth": {"user": HIDDEN, "list": [HIDDEN]}, "api_keys": [HIDDEN], "openai_api_key2": HIDDEN, "Authorization": HIDDEN,
        "url": f"https://{HIDDEN}@host/v1?api_key={HIDDEN}&n=2", "deep": [{"secret": HIDDEN}, f"postgres://{HIDDEN}@db"],
    }  # fmt: skip
    assert without_secrets(shown) == shown
    hidden = "auth.user auth.list[0] api_keys[0] openai_api_key2 Authorization url deep[0].secret deep[1]"
    assert hidden_keys(shown) == hidden.split() and hidden_keys(table) == []
    for name in NAMES:
        assert without_secrets({name: "any"}) == {name: HIDDEN}
    assert without_secrets(["--api-key", "abc", "--port", "80"]) == ["--api-key", HIDDEN, "--port", "80"]


@pytest.mark.parametrize("form", FORMS)
def test_a_secret_in_an_address_is_hidden_whatever_its_key(form):
    text = f"ConnectionError: at {form.format(SECRET)}"
    shown = without_logins(text)
    assert SECRET not in shown and HIDDEN in shown and without_logins(shown) == shown, shown
    shown = without_secrets({"note": {"of": [text]}})
    assert SECRET not in str(shown) and hidden_keys(shown) == ["note.of[0]"]


def test_no_setting_of_ours_is_taken_for_a_secret():
    assert without_secrets(settings := dict.fromkeys(all_keys(), "x")) == settings
    for name in recipes().keys() - {"smollm2-grpo-gspo"}:
        whole = to_dict(load(f"recipe:{name}"))
        assert without_secrets(whole) == whole


LEAKS = """
FORMS = {forms!r}
calls = []

def rows(**config):
    return [{{"prompt": f"{{i}}+1=", "answer": "a"}} for i in range(24)]

def score(prompts, completions, **columns):
    calls.append(1)
    if len(completions) > 1 or len(calls) % 3:
        raise ConnectionError("refused: " + FORMS[len(calls) % len(FORMS)])
    return [float(completions[0].count("a"))]
"""


def test_no_file_of_a_run_and_no_line_on_the_screen_has_a_secret(tmp_path, monkeypatch, capfd, caplog):
    """Of settings or of what a reward raises: in config.toml, rollouts.jsonl, checkpoints, the report and all others."""
    forms = [form.format(SECRET) for form in FORMS]
    (tmp_path / "leaks_secrets.py").write_text(LEAKS.format(forms=forms))
    monkeypatch.chdir(tmp_path)
    config = {"texts": forms, "nested": {"of": forms}} | dict.fromkeys(NAMES, SECRET)
    task = {"source": "leaks_secrets:rows", "config": config, "eval_source": "leaks_secrets:rows"}
    tiny, reward = model(), {"functions": ["leaks_secrets:score"], "workers": 1}
    made = tiny_settings("run", task=task, reward=reward, train={"steps": 3}, eval={"every": 3})
    gspo.train(tiny.model, tokenizer=tiny.tokenizer, config=made)
    out, err = capfd.readouterr()
    assert SECRET not in out + err + caplog.text and "completions got no reward" in caplog.text
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert {"config.toml", "rollouts.jsonl", "events.jsonl", "report.html", "state.pt"} <= {path.name for path in files}
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]
    assert {HIDDEN in (tmp_path / "run" / name).read_text() for name in ("config.toml", "rollouts.jsonl")} == {True}


def test_a_file_is_replaced_and_no_link_followed(tmp_path):
    other, path = tmp_path / "other", tmp_path / "file"
    other.write_text("kept")
    path.symlink_to(other)
    (tmp_path / ".file.part").symlink_to(other)
    replace_file(path, b"new")
    assert path.read_text() == "new" and not path.is_symlink() and other.read_text() == "kept"
    replace_file(path, b"newer", mode=0o600)
    assert path.read_text() == "newer" and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(os.listdir(tmp_path)) == ["file", "other"]
    with pytest.raises(OSError):
        replace_file(tmp_path / "none" / "file", b"")


def test_a_failed_write_leaves_nothing(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError):
        replace_file(tmp_path / "folder", b"a file where a folder is")
    assert os.listdir(tmp_path) == ["folder"]


def test_a_folder_that_is_a_link_is_refused(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(ValueError, match=r"link is a link to .*Remove the link"):
        own_folder(tmp_path / "link")
    assert own_folder(tmp_path / "a" / "b").is_dir() and own_folder(tmp_path / "a" / "b").is_dir()
