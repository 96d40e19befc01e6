"""Makes untrusted input harmless: text for terminals and pages, secrets in settings, writes where a symlink may lie.

Imports nothing from gspo, so that every layer may use it.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HIDDEN = "<hidden>"
"""Placeholder for a secret."""
_KEPT = "\n\t"
_ODD = {"Cc", "Cs", "Zl", "Zp"}  # control characters, lone surrogates, line and paragraph separators
_TURNS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # bidirectional controls

_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_SECRET = {
    *("apikey", "secret", "password", "passwd", "passphrase", "pwd", "auth", "authorization"),
    *("credential", "cookie", "bearer", "cred", "pw", "passcode", "jwt"),
}
_OF_MANY = {"key", "token", "pass", "pat"}  # ambiguous (sort key, pad token): the word before it or the value decides
_OWNERS = {
    *("api", "access", "private", "session", "refresh", "client", "service", "account", "user", "deploy", "admin"),
    *("hf", "hub", "huggingface", "openai", "anthropic", "wandb", "github", "gitlab", "aws", "azure", "google", "gcp"),
    *("db", "database", "smtp", "slack", "my", "bot", "root", "dev", "prod"),
}
_GLUED = re.compile(rf"(?:{'|'.join(_OWNERS | _SECRET)})(?:key|token|secret|password|pass|pwd?)s?")  # apitoken
_FORMS = {"hash", "header", "value", "string"}  # skipped at the end of a key: password_hash
_RANDOM = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[\w+/=.-]{16,}")
_MARKER = re.compile(r"[<\[{|].*[>\]}|]", re.S)  # <pad>, [MASK]: special tokens of a vocabulary
_LOGIN = re.compile(r"(\b[a-zA-Z][\w+.-]*://)[^\s/?#\"']+@")
_KNOWN = (  # secrets of well-known services; the first group is kept. Folders with such names do not match
    re.compile(r"(?<![\w/-])(sk-)(?=[\w-]*\d|[\w-]{20})[\w-]{8,}(?![\w/-])"),
    re.compile(r"(?<![\w/-])(hf_)(?=[a-z]*[A-Z\d])[A-Za-z\d]{10,}(?![\w/-])"),
    re.compile(r"(?<![\w-])(gh[pousr]_|github_pat_|glpat-|xox[a-z]-|xapp-|AKIA|AIza)\w[\w-]{7,}"),
    re.compile(r"(https://hooks\.slack\.com/\w+/|https://[\w.]*discord(?:app)?\.com/api/webhooks/)[^\s\"']+"),
    re.compile(
        r"(\b(?:authorization|x-api-key|cookie)[\"']?\s?[:=]\s?[\"']?(?:(?:bearer|basic|token)\s+)?)[^\s\"',;]+", re.I
    ),
    re.compile(r"(\bbearer\s+)(?=\S*\d|\S{20})[\w.~+/=-]{6,}", re.I),
)
_ASSIGNED = re.compile(r"""(?<![\w.-])([\w.-]{1,80})(["']?\s?=\s?|["']\s?:\s?)(?:(["'])(.*?)(?:\3|$)|([^\s"',;&]+))""")
_LEFT = re.compile(  # HIDDEN in a place where one of the expressions above has put it
    rf"""(?:^|//|=\s?["']?|["']\s?:\s?["']?|[-_/]|AKIA|AIza|(?i:bearer|basic|token)\s|(?i:tion|key|cookie):\s?){HIDDEN}"""
)
_IN_QUERY = re.compile(r"([?&](?:[\w.-]*[_.-])?(?:key|apikey|token|secret|password|signature|sig)=)[^\s&#\"']+", re.I)


def visible(text: Any) -> str:
    """Escapes (as `\\x1b`) the characters that a terminal or a page would interpret instead of showing them: control
    characters, bidirectional controls, lone surrogates. Newlines and tabs stay.
    """
    lines = str(text).replace("\r\n", "\n")
    if lines.isascii() and lines.isprintable():
        return lines
    return "".join(c if c in _KEPT or not _is_odd(c) else _escaped(c) for c in lines)


def _is_odd(character: str) -> bool:
    return character in _TURNS or unicodedata.category(character) in _ODD


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def without_secrets(value: Any, key: str = "") -> Any:
    """Replaces by HIDDEN each string whose key names a secret (`api_key`, `Authorization`) and what `without_logins` finds
    in other strings. Recurses into mappings and lists. Numbers stay: `max_token = 9` is no secret.
    """
    if isinstance(value, Mapping):
        return {name: without_secrets(item, key if _names_a_secret(key, "") else str(name)) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_secrets(item, key) for item in value]
    if not isinstance(value, str):
        return value
    return HIDDEN if value and _names_a_secret(key, value) else without_logins(value)


def without_logins(text: str) -> str:
    """Replaces by HIDDEN the `user:password` and the keys in URLs, secrets of known services (`sk-...`), and values assigned
    to a name of a secret (`Password=...;`, `"api_key": "..."`).
    """
    text = _IN_QUERY.sub(rf"\g<1>{HIDDEN}", _LOGIN.sub(rf"\g<1>{HIDDEN}@", text))
    for form in _KNOWN:
        text = form.sub(rf"\g<1>{HIDDEN}", text)
    return _ASSIGNED.sub(_unassigned, text)


def _unassigned(found: re.Match[str]) -> str:
    """Hides the value of an assignment if it is a secret. For a bare `key` or `token`, only a random-looking value is."""
    key, sign, quote, quoted, bare = found.groups()
    value = bare if quoted is None else quoted
    sure = key.lower().rstrip("s") not in _OF_MANY or _RANDOM.fullmatch(value)
    if not value or not sure or not _names_a_secret(key, value):
        return found[0]
    return f"{key}{sign}{quote or ''}{HIDDEN}{quote or ''}"


def _names_a_secret(key: str, value: str) -> bool:
    """Whether a key names a secret by its last word: `api_key`, `hfTokens`, `X-Api-Key2`, but not `key_variable`. For other
    keys and tokens (`label_key`) the value decides: a long mix of letters and digits is a secret, `<pad>` is not.
    """
    words = [word.lower() for word in _WORDS.findall(key)]
    while len(words) > 1 and (words[-1].isdigit() or words[-1] in _FORMS):
        words.pop()
    last = words[-1] if words else ""
    last = last if last in _OF_MANY else last.removesuffix("s")
    if last not in _OF_MANY:
        return last in _SECRET or bool(_GLUED.fullmatch(last))
    if last == "token" and _MARKER.fullmatch(value):
        return False
    return len(words) == 1 or words[-2] in _OWNERS | _SECRET or bool(_RANDOM.fullmatch(value))


def hidden_keys(value: Any, key: str = "") -> list[str]:
    """Paths of the keys in `value` whose text was replaced by HIDDEN, such as `task.config.api_key`."""
    if isinstance(value, Mapping):
        return [found for name, item in value.items() for found in hidden_keys(item, f"{key}.{name}" if key else str(name))]
    if isinstance(value, (list, tuple)):
        return [found for i, item in enumerate(value) for found in hidden_keys(item, f"{key}[{i}]")]
    return [key] if isinstance(value, str) and _LEFT.search(value) else []


def replace_file(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Writes a file atomically (write, then rename). Symlinks at `path` or the temporary name are replaced, not followed."""
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)  # left by a killed process, or a planted symlink
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def own_folder(path: Path) -> Path:
    """Creates the folder `path` if it does not exist, and returns it. Raises ValueError if `path` is a symlink."""
    if path.is_symlink():
        raise ValueError(f"{path} is a link to {os.readlink(path)!r}: nothing is written through it. Remove the link")
    path.mkdir(parents=True, exist_ok=True)
    return path
