"""Makes untrusted input harmless: text for terminals and pages, secrets in settings, writes where a symlink may lie.

Imports nothing from gspo, so that every layer may use it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HIDDEN = "<hidden>"
"""Placeholder for a secret."""
_ODD = re.compile("[\0-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, separators of lines and paragraphs, bidirectional controls, and lone surrogates."""
_OWNERS = (
    "api|access|auth|secret|private|signing|encryption|ssh|app|master|license|webhook|subscription|session|refresh|client"
    "|service|account|user|deploy|admin|root|bot|db|database|smtp|hf|hub|huggingface|openai|anthropic|wandb|github|gitlab"
    "|slack|aws|azure|google|gcp|vault|bearer"
)
_SECRET_KEY = re.compile(  # of a key only the letters count
    rf"((?:{_OWNERS})(?:key|token|pass)|secret|passw(?:or)?d|passphrase|passcode|pwd|credential|(?:basic|proxy|http)auth"
    r"|authorization|bearer|cookie|jwt|githubpat)s?$|^(?:key|token|auth|pw|pass|pat|cred)s?$"
)
_CONTAINER = re.compile("(?:list|array|map|dict|value|str|text|header|pem)s?$")
_LOGIN = re.compile(r"(\b[a-zA-Z][\w+.-]*://)[^\s/?#\"']+@")
_IN_QUERY = re.compile(r"([?&#](?:[\w.-]*[_.-])?(?:key|apikey|token|secret|password|signature|sig)=)[^\s&#\"']+", re.I)
_REPLACED = re.compile(rf"^{HIDDEN}$|//{HIDDEN}@|={HIDDEN}")


def visible(text: Any) -> str:
    """Escapes (as `\\x1b`) the characters that a terminal or a page would interpret instead of showing them: control
    characters, bidirectional controls, lone surrogates. Newlines and tabs stay.
    """
    return _ODD.sub(_escaped, str(text).replace("\r\n", "\n"))


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def shorten(text: str, most: int) -> str:
    """Leaves out the middle of a text of more than `most` characters, and says how much."""
    cut = len(text) - most
    return text if cut <= 0 else f"{text[: most // 2]}\n… {cut:,} characters left out …\n{text[-most // 2 :]}"


def without_secrets(value: Any, key: str = "") -> Any:
    """Replaces by HIDDEN each string whose key names a secret (`api_key`, `Authorization`), and logins in URLs, in mappings
    and lists at any depth. Numbers stay: `max_token = 9` is no secret.
    """
    letters = re.sub("[^a-z]", "", key.lower())
    secret = _SECRET_KEY.search(letters) or _SECRET_KEY.search(_CONTAINER.sub("", letters))
    if isinstance(value, Mapping):
        return {name: without_secrets(item, key if secret else str(name)) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        before = ["", *value]  # the value of an option follows its name: ["--api-key", "..."]
        return [
            without_secrets(item, last if isinstance(last, str) and last.startswith("--") else key)
            for last, item in zip(before, value)
        ]
    if not isinstance(value, str):
        return value
    return HIDDEN if value and secret else without_logins(value)


def without_logins(text: str) -> str:
    """Replaces by HIDDEN the `user:password` and the keys in URLs."""
    return _IN_QUERY.sub(rf"\g<1>{HIDDEN}", _LOGIN.sub(rf"\g<1>{HIDDEN}@", text))


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
