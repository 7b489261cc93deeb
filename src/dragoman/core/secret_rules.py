"""Who wrote a reference to a secret, what it is for, and whether its writer may use it.

The owner of the hub may refer to anything. Everybody else may refer to what the configuration sets
aside: variables that begin with `DRAGOMAN_AGENT_`, those of `[bridge] credential_env`, files below
`tokens/` in the home, and `[secrets] allow`. `exec:` runs a program, and is the owner's alone. What
was sent to one origin is reserved for it: the right to add servers, agents or workflows must not
allow sending it to another host.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from contextlib import nullcontext, suppress
from enum import Enum
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple, Protocol

from dragoman.core.errors import InvalidInput, StorageFailed
from dragoman.core.principal import OWNER, Principal

ENV_PREFIX = "DRAGOMAN_AGENT_"
"""Variables with this prefix are set aside for what others write."""
TOKENS = "tokens"
"""The folder of the home whose files are set aside for them."""
ANYWHERE = Path("/")
LIMITED_KINDS = ("env", "file", "keyring")
"""The kinds of references that others than the owner may use."""
MAX_KNOWN = 10_000


class Author(Enum):
    """Who wrote a reference."""

    OWNER = "owner"
    """The owner of the hub: config.toml, the environment, the command line, a file in the home."""
    API = "api"
    """A caller of the API that is not the owner, such as an administrator."""
    STORED = "stored"
    """A row of a database that others share; who wrote it is unknown."""


def find_author(principal: Principal) -> Author:
    """Who writes what this caller of the API sends: the owner only in the owner's own session, no
    key and no role."""
    return Author.OWNER if principal.kind == OWNER.kind else Author.API


class SecretUse(NamedTuple):
    """Who wrote a reference, and what the secret is for."""

    author: Author
    purpose: str
    """Names in errors what needs the secret, such as `server "github"`."""
    origin: str = ""
    """The origin that it is sent to, by `urls.render_full_origin`; empty if there is not one."""


class CredentialOrigins(Protocol):
    """Stores for which origins references are reserved."""

    def bind_credential(self, reference: str, origin: str) -> None: ...

    def list_bound_origins(self, reference: str) -> list[str]: ...


class ReferenceRules:
    """Which references others than the owner may use."""

    def __init__(self, names: Iterable[str], home: Path, allow: Iterable[str] = ()) -> None:
        """`names` are the variables that the operator listed in config.toml, `allow` the globs of
        further references."""
        self._names = frozenset(names)
        self._home = home
        self._allow = [(one, self.normalize(one)) for one in allow]
        self._stores: list[CredentialOrigins] = []
        self._bound: set[tuple[str, str]] = set()
        """References and origins that are known to be stored; none is ever deleted."""

    def open_bindings(self, store: CredentialOrigins) -> None:
        """Keeps in `store` for which origins references are reserved; nothing is before."""
        self._stores.append(store)

    def check(self, reference: str, use: SecretUse) -> None:
        """Raises `InvalidInput` for a reference that its author may not use, or may not use for
        that origin, and looks at no secret: the error is the same whether or not the variable or
        the file exists."""
        if use.author is Author.OWNER:
            return
        self._check_set_aside(reference, use)
        self._check_origin(reference, use)

    def bind(self, reference: str, origin: str) -> None:
        """Reserves a reference for an origin, besides those that have it already."""
        pair = self.normalize(reference), origin
        if pair in self._bound or reference.partition(":")[0] not in LIMITED_KINDS:
            return  # of other kinds only the owner can use any
        for store in self._stores:
            store.bind_credential(*pair)
            if len(self._bound) >= MAX_KNOWN:
                self._bound.clear()
            self._bound.add(pair)

    def note_use(self, reference: str, use: SecretUse) -> None:
        """Reserves a reference for the origin that it is about to be sent to."""
        if use.origin:
            # What the owner has configured works while the database is away.
            with suppress(StorageFailed) if use.author is Author.OWNER else nullcontext():
                self.bind(reference, use.origin)

    def _check_origin(self, reference: str, use: SecretUse) -> None:
        name = self.normalize(reference)
        if (name, use.origin) in self._bound:
            return
        bound = [origin for store in self._stores for origin in store.list_bound_origins(name)]
        if bound and use.origin not in bound:
            where = f"sent to {use.origin}" if use.origin else f"given to {use.purpose}"
            raise InvalidInput(
                f'"{name[:200]}" is reserved for {" and ".join(bound)}, where it was registered '
                f"first, and is not {where}: put the credential for {use.purpose} under another "
                "name, or write it into the home yourself. See: dragoman docs registry"
            )

    def _check_set_aside(self, reference: str, use: SecretUse) -> None:
        kind, _, name = reference.partition(":")
        if kind not in LIMITED_KINDS:
            raise _build_refusal(
                use, f"{kind[:20]}: references, which only the owner's own files may contain"
            )
        if "$" in name or "{" in name:
            raise _build_refusal(use, 'references that contain "$" or "{"')
        if self._find_glob(reference) is not None:
            return
        if kind == "env" and not (name.startswith(ENV_PREFIX) or name in self._names):
            raise _build_refusal(
                use,
                f'the variable "{name[:200]}": add "{name[:200]}" to credential_env below [bridge] '
                f'in config.toml, or "env:{name[:200]}" to allow below [secrets], and restart the '
                f"hub, or put the value under a name that begins with {ENV_PREFIX} into the hub's "
                "env file",
            )
        if kind == "file" and not self.normalize(reference).startswith(f"file:{TOKENS}/"):
            raise _build_refusal(
                use,
                f'files outside of "{TOKENS}" in the hub\'s home: put the token there, mode 600, '
                f"and give file:{TOKENS}/NAME, or add the file to allow below [secrets] in "
                "config.toml and restart the hub",
            )
        if kind == "keyring":
            raise _build_refusal(
                use,
                f'"{reference[:200]}": add it to allow below [secrets] in config.toml and restart '
                "the hub",
            )

    def find_folder(self, reference: str, use: SecretUse) -> Path:
        """The folder that a file must be in once all links are resolved: the one that is allowed,
        however the file is linked."""
        if use.author is Author.OWNER:
            return ANYWHERE
        if not self.normalize(reference).startswith(f"file:{TOKENS}/"):
            glob = self._find_glob(reference)
            if glob is not None:
                fixed = re.split(r"[*?\[]", glob.removeprefix("file:"))[0]
                return Path(posixpath.join(str(self._home), posixpath.dirname(fixed))).resolve()
        return self._home.resolve() / TOKENS

    def _find_glob(self, reference: str) -> str | None:
        """Finds the glob of `allow` that has the reference."""
        normalized = self.normalize(reference)
        for glob, folded in self._allow:
            if fnmatchcase(normalized, folded):
                return glob
        return None

    def normalize(self, reference: str) -> str:
        """One spelling for each file; case is folded, since some file systems ignore it."""
        kind, _, name = reference.partition(":")
        if kind != "file":
            return reference
        path = posixpath.normpath(posixpath.join(str(self._home), name))
        return f"file:{posixpath.relpath(path, str(self._home))}".casefold()


def _build_refusal(use: SecretUse, what: str) -> InvalidInput:
    written = "in a shared database" if use.author is Author.STORED else "by the API"
    return InvalidInput(
        f"{use.purpose} was written {written} and may not use {what}. See: dragoman docs secrets"
    )
