"""The keys under which the labels of stored data are kept: of files, of other data that a target
stores, of conversations and of runs. Pure."""

from __future__ import annotations

import posixpath
from hashlib import sha256
from urllib.parse import unquote, urlsplit

MAX_KEY = 300
"""Characters of a key; a longer one ends in a digest."""
FILE, STORED, CONVERSATION, RUN = "file", "stored", "conversation", "run"
"""The kinds of keys."""


def build_stored_key(target: str, name: str) -> str:
    """Builds the key of data that a target stores. A path of this machine is the same for all
    targets; other names belong to the target."""
    path = name
    if name.startswith("file:"):
        try:
            path = unquote(urlsplit(name).path)
        except ValueError:
            path = name
    if path.startswith("/"):
        return shorten_key(f"{FILE} {posixpath.normpath(path)}")
    return shorten_key(f"{STORED} {target} {posixpath.normpath(name) if '/' in name else name}")


def build_context_key(org: str, principal: str, target: str, context: str) -> str:
    """Builds the key of a conversation; `principal` is the label of the one that converses."""
    return shorten_key(f"{CONVERSATION} {org}/{principal} {target} {context}")


def shorten_key(key: str) -> str:
    if len(key) <= MAX_KEY:
        return key
    return f"{key[:200]}…{sha256(key.encode('utf-8', 'replace')).hexdigest()}"
