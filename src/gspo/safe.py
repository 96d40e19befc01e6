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

_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_SECRET = {
    *("apikey", "apitoken", "authtoken", "secretkey", "secret", "password", "passwd", "passphrase", "passcode", "pwd", "pw"),
    *("auth", "authorization", "credential", "cred", "cookie", "bearer", "jwt", "pat"),
}
_AMBIGUOUS = {"key", "token", "pass"}  # sort key, pad token: the word before decides
_OWNERS = {
    *("signing", "encryption", "ssh", "app", "master", "license", "webhook", "subscription"),
    *("api", "access", "private", "session", "refresh", "client", "service", "account", "user", "deploy", "admin"),
    *("hf", "hub", "huggingface", "openai", "anthropic", "wandb", "github", "gitlab", "aws", "azure", "google", "gcp"),
    *("db", "database", "smtp", "slack", "bot", "root", *_SECRET),
}
_CONTAINERS = {*("list", "array", "map", "dict", "table", "value", "string", "str", "text", "header", "pem")}
_TOKEN = re.compile(  # secrets of a form that names itself: a JWT, keys of well-known services, a private key in PEM
    r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*|(?<![\w/-])sk-(?=[\w-]*\d)(?=[\w-]*[A-Z])[\w-]{20,}|\bhf_[A-Za-z0-9]{20,}"
    r"|\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{16,}|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"
    r"|\bsk-(?:proj|ant|or|svcacct)-[\w-]{16,}|\b[rs]k_(?:live|test)_\w{16,}|\bnpm_[A-Za-z0-9]{30,}|\bpypi-[\w-]{20,}"
    r"|\b(?:gsk|nvapi|xai)[_-][\w-]{30,}|\bya29\.[\w-]{10,}|\bSG\.[\w-]{8,}\.[\w-]{8,}|\bBearer (?=\S*\d)[\w.~+/=-]{12,}"
    r"|hooks\.slack\.com/services/\S+"
    r"|\bAIza[\w-]{30,}|\bxox[a-z]-[\w-]{10,}|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*"
)
_LOGIN = re.compile(r"(\b[a-zA-Z][\w+.-]*://)[^\s/?#\"']+@")
# HF_TOKEN=..., --api-key=..., X-Api-Key: ...
_ASSIGNED = re.compile(r"(?<![\w/?&.#-])((?:--)?[A-Za-z][\w-]+)(=|: )[^\s\"'&;]+")
_IN_QUERY = re.compile(r"([?&#](?:[\w.-]*[_.-])?(?:key|apikey|token|secret|password|signature|sig)=)[^\s&#\"']+", re.I)
_REPLACED = re.compile(rf"^{HIDDEN}$|//{HIDDEN}@|[\w-](?:=|: ){HIDDEN}")


def visible(text: Any) -> str:
    """Escapes (as `\\x1b`) the characters that a terminal or a page would interpret instead of showing them: control
    characters, bidirectional controls, lone surrogates. Newlines and tabs stay.
    """
    lines = str(text).replace("\r\n", "\n")
    if lines.isascii() and lines.isprintable():
        return lines
    return "".join(c if c in _KEPT or not _is_odd(c) else _escaped(c) for c in lines)


def shorten(text: str, most: int) -> str:
    """Leaves out the middle of a text of more than `most` characters, and says how much."""
    cut = len(text) - most
    return text if cut <= 0 else f"{text[: most // 2]}\n… {cut:,} characters left out …\n{text[-most // 2 :]}"


def _is_odd(character: str) -> bool:
    return character in _TURNS or unicodedata.category(character) in _ODD


def _escaped(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def without_secrets(value: Any, key: str = "") -> Any:
    """Replaces by HIDDEN each string whose key names a secret (`api_key`, `Authorization`) or that contains one of a known
    form (`hf_...`, a JWT), and logins in URLs. Recurses into mappings and lists. Numbers stay: `max_token = 9` is no secret.
    """
    secret = _names_a_secret(key)
    if isinstance(value, Mapping):
        return {name: without_secrets(item, key if secret else str(name)) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        names = [key, *(item if isinstance(item, str) and item.startswith("--") else key for item in value)]  # of options
        return [without_secrets(item, name) for item, name in zip(value, names)]
    if not isinstance(value, str):
        return value
    return HIDDEN if value and (secret or _TOKEN.search(value)) else without_logins(value)


def without_logins(text: str) -> str:
    """Replaces by HIDDEN the `user:password` and the keys in URLs, and secrets of a known form."""
    text = _ASSIGNED.sub(_without_value, _TOKEN.sub(HIDDEN, text))
    return _IN_QUERY.sub(rf"\g<1>{HIDDEN}", _LOGIN.sub(rf"\g<1>{HIDDEN}@", text))


def _without_value(found: re.Match[str]) -> str:
    """An assignment without its value, if it names a secret: `password=`, but not `key=` or `password: `, as in prose."""
    name, sign = found[1], found[2]
    alone = len(_WORDS.findall(name)) == 1 and not name.startswith("--")
    secret = _names_a_secret(name) and (not alone or (sign == "=" and name.lower() not in _AMBIGUOUS))
    return f"{name}{sign}{HIDDEN}" if secret else found[0]


def _names_a_secret(key: str) -> bool:
    """Whether a key names a secret by its last words: `api_key`, `hfTokens`, `X-Api-Key2`, `token_list`, but not
    `key_variable`.
    """
    words = [word.lower() for word in _WORDS.findall(key)] or [""]
    while len(words) > 1 and {words[-1], words[-1].removesuffix("s")} & _CONTAINERS:  # they hold what is named before
        words.pop()
    *before, last = words
    if last.removesuffix("s") in _AMBIGUOUS or last in _AMBIGUOUS:
        return not before or before[-1] in _OWNERS
    return last in _SECRET or last.removesuffix("s") in _SECRET


def hidden_keys(value: Any, key: str = "") -> list[str]:
    """Paths of the keys in `value` whose text was replaced by HIDDEN, such as `task.config.api_key`."""
    if isinstance(value, Mapping):
        return [found for name, item in value.items() for found in hidden_keys(item, f"{key}.{name}" if key else str(name))]
    if isinstance(value, (list, tuple)):
        return [found for i, item in enumerate(value) for found in hidden_keys(item, f"{key}[{i}]")]
    return [key] if isinstance(value, str) and _REPLACED.search(value) else []


def replace_file(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Writes a file atomically (write, sync, rename). Symlinks at `path` or the temporary name are not followed."""
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)  # left by a killed process, or a planted symlink
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
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
