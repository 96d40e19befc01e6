"""What others wrote, made harmless: text for terminals and pages, secrets in settings, files where a link may lie.

Imports nothing of gspo: every layer may use it.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HIDDEN = "<hidden>"
"""What stands in the place of a secret."""
_KEPT = "\n\t"
_ODD = {"Cc", "Cs", "Zl", "Zp"}  # control characters, half surrogate pairs, line and paragraph separators
_TURNS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # these reorder what is read

_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
_SECRET = {
    *("apikey", "secret", "password", "passwd", "passphrase", "pwd", "auth", "authorization"),
    *("credential", "cookie", "bearer", "cred", "pw", "passcode", "jwt"),
}
_OF_MANY = {"key", "token", "pass", "pat"}  # of a sort, of padding, over data: what stands before it or the value decides
_OWNERS = {
    *("api", "access", "private", "session", "refresh", "client", "service", "account", "user", "deploy", "admin"),
    *("hf", "hub", "huggingface", "openai", "anthropic", "wandb", "github", "gitlab", "aws", "azure", "google", "gcp"),
    *("db", "database", "smtp", "slack", "my", "bot", "root", "dev", "prod"),
}
_GLUED = re.compile(rf"(?:{'|'.join(_OWNERS | _SECRET)})(?:key|token|secret|password|pass|pwd?)s?")  # apitoken
_FORMS = {"hash", "header", "value", "string"}  # of a secret
_RANDOM = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[\w+/=.-]{16,}")
_MARKER = re.compile(r"[<\[{|].*[>\]}|]", re.S)  # <pad>, [MASK]: tokens of a vocabulary
_LOGIN = re.compile(r"(\b[a-zA-Z][\w+.-]*://)[^\s/?#\"']+@")
_KNOWN = (  # what secrets of well-known services look like; the first group stays. Folders of such names are none
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
_LEFT = re.compile(  # HIDDEN where one of these has put it
    rf"""(?:^|//|=\s?["']?|["']\s?:\s?["']?|[-_/]|AKIA|AIza|(?i:bearer|basic|token)\s|(?i:tion|key|cookie):\s?){HIDDEN}"""
)
_IN_QUERY = re.compile(r"([?&](?:[\w.-]*[_.-])?(?:key|apikey|token|secret|password|signature|sig)=)[^\s&#\"']+", re.I)


def visible(text: Any) -> str:
    """`text` without what a terminal or a page obeys instead of showing it: control characters, those that reverse the
    direction of writing, halves of surrogate pairs. Each is written as its escape, such as `\\x1b`; newlines and tabs stay.
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
    """`value` with HIDDEN for each text in it whose key names a secret, such as `api_key` or `Authorization`, and for what
    `without_logins` finds in the others. Tables and lists are gone through; numbers stay: `max_token = 9` is none.
    """
    if isinstance(value, Mapping):
        return {name: without_secrets(item, key if _names_a_secret(key, "") else str(name)) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [without_secrets(item, key) for item in value]
    if not isinstance(value, str):
        return value
    return HIDDEN if value and _names_a_secret(key, value) else without_logins(value)


def without_logins(text: str) -> str:
    """`text` with HIDDEN for the `user:password` and the keys in its addresses, for what looks like a secret of a known
    service (`sk-...`), and for what is set to a name that says so (`Password=...;`, `"api_key": "..."`).
    """
    text = _IN_QUERY.sub(rf"\g<1>{HIDDEN}", _LOGIN.sub(rf"\g<1>{HIDDEN}@", text))
    for form in _KNOWN:
        text = form.sub(rf"\g<1>{HIDDEN}", text)
    return _ASSIGNED.sub(_unassigned, text)


def _unassigned(found: re.Match[str]) -> str:
    """An assignment in a text, without its value where that is a secret. A bare `key` or `token` may be one of anything."""
    key, sign, quote, quoted, bare = found.groups()
    value = bare if quoted is None else quoted
    sure = key.lower().rstrip("s") not in _OF_MANY or _RANDOM.fullmatch(value)
    if not value or not sure or not _names_a_secret(key, value):
        return found[0]
    return f"{key}{sign}{quote or ''}{HIDDEN}{quote or ''}"


def _names_a_secret(key: str, value: str) -> bool:
    """Whether the last word of a key says so: `api_key`, `hfTokens`, `X-Api-Key2`, but not `key_variable`. Of other keys and
    tokens, as `label_key`, the value decides: a long one of letters and digits is a secret, and `<pad>` is none.
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
    """The keys below `value` in whose place stands HIDDEN, as `task.config.api_key`."""
    if isinstance(value, Mapping):
        return [found for name, item in value.items() for found in hidden_keys(item, f"{key}.{name}" if key else str(name))]
    if isinstance(value, (list, tuple)):
        return [found for i, item in enumerate(value) for found in hidden_keys(item, f"{key}[{i}]")]
    return [key] if isinstance(value, str) and _LEFT.search(value) else []


def replace_file(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Writes a file in one move. A link of that name is replaced and not followed, as nothing is that lies in the way."""
    part = path.with_name(f".{path.name}.part")
    part.unlink(missing_ok=True)  # a kill left it, or somebody put a link there
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def own_folder(path: Path) -> Path:
    """Makes the folder `path` where there is none. Raises ValueError where a link of that name leads elsewhere."""
    if path.is_symlink():
        raise ValueError(f"{path} is a link to {os.readlink(path)!r}: nothing is written through it. Remove the link")
    path.mkdir(parents=True, exist_ok=True)
    return path
