"""References to secrets: what is read, what is refused, and that no error contains a secret."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dragoman.core.errors import ConfigError, InvalidInput
from dragoman.core.secret_references import (
    MAX_SECRET_BYTES,
    SecretResolver,
    find_embedded_variables,
    is_reference,
    list_embedded,
    render_reference,
)
from dragoman.core.secret_rules import Author, ReferenceRules, SecretUse

CANARY = "canary-5f0c1d"


class FixedSource:
    def __init__(self, secrets: dict[str, str]) -> None:
        self.secrets = secrets

    async def read(self, name: str, owner: str) -> str:
        return self.secrets.get(name, "")

    def forget(self, name: str) -> bool:
        return self.secrets.pop(name, None) is not None


OWN = SecretUse(Author.OWNER, "it")


@pytest.fixture
def resolver(tmp_path: Path) -> SecretResolver:
    return SecretResolver({"TOKEN": CANARY}, tmp_path, {"keyring": FixedSource({"a/b": "kept"})})


def write_secret(path: Path, text: str, mode: int = 0o600) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)


async def test_reads_variables_files_and_other_sources(
    resolver: SecretResolver, tmp_path: Path
) -> None:
    write_secret(tmp_path / "tokens" / "one", f"{CANARY}\n")
    assert await resolver.resolve("env:TOKEN", OWN) == CANARY
    assert await resolver.resolve("file:tokens/one", OWN) == CANARY
    assert await resolver.resolve(f"file:{tmp_path}/tokens/one", OWN) == CANARY
    assert await resolver.resolve("keyring:a/b", OWN) == "kept"


async def test_expands_references_in_texts(resolver: SecretResolver) -> None:
    text = "Bearer ${TOKEN} ${env:TOKEN} ${keyring:a/b} ${not a reference}"
    expanded = await resolver.expand(text, OWN)
    assert expanded == f"Bearer {CANARY} {CANARY} kept ${{not a reference}}"
    assert list_embedded(text) == ["env:TOKEN", "env:TOKEN", "keyring:a/b"]
    assert find_embedded_variables(text) == ["TOKEN", "TOKEN"]


async def test_a_secret_is_not_expanded_again(tmp_path: Path) -> None:
    resolver = SecretResolver({"A": "${B}", "B": CANARY}, tmp_path)
    assert await resolver.expand("${A}", OWN) == "${B}"


@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        ("env:MISSING", "needs the environment variable MISSING"),
        ("file:tokens/missing", "no such file"),
        ("file:tokens", "not a regular file"),
        ("file:tokens/loose", "chmod 600"),
        ("file:tokens/long", "more than"),
        ("file:hub.key", "belongs to the hub itself"),
        ("file:tokens/../hub.key", "belongs to the hub itself"),
        ("file:audit.db", "belongs to the hub itself"),
        ("keyring:a/empty", "is empty"),
        ("vault:x", "unknown kind"),
    ],
)
async def test_says_why_a_secret_cannot_be_used(
    resolver: SecretResolver, tmp_path: Path, reference: str, problem: str
) -> None:
    write_secret(tmp_path / "tokens" / "loose", CANARY, 0o640)
    write_secret(tmp_path / "tokens" / "long", CANARY + "x" * MAX_SECRET_BYTES)
    for name in ("hub.key", "audit.db"):
        write_secret(tmp_path / name, CANARY)
    with pytest.raises(ConfigError) as caught:
        await resolver.resolve(reference, SecretUse(Author.OWNER, 'server "s"'))
    assert problem in str(caught.value) and 'server "s"' in str(caught.value)
    assert CANARY not in str(caught.value)


async def test_a_link_out_of_the_folder_is_refused(
    resolver: SecretResolver, tmp_path: Path
) -> None:
    write_secret(tmp_path / "elsewhere", CANARY)
    folder = tmp_path / "tokens"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "elsewhere")
    assert await resolver.resolve("file:tokens/link", OWN) == CANARY
    with pytest.raises(ConfigError, match="outside of"):
        await resolver.resolve("file:tokens/link", SecretUse(Author.API, "it"))


async def test_a_pipe_does_not_block(resolver: SecretResolver, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ConfigError, match="not a regular file"):
        await resolver.resolve("file:pipe", OWN)


def test_recognizes_references() -> None:
    for text in ("env:A", "file:a b", "keyring:s/n", "exec:op read x"):
        assert is_reference(text), text
    for text in ("env:", "env: A", "sk-123", "https://x", "FILE:a", "vault:x", "env"):
        assert not is_reference(text), text


def test_renders_no_arguments_of_a_command() -> None:
    assert render_reference(f"exec:vault read {CANARY}") == "exec:vault …"


def test_forgets_only_what_a_source_caches(resolver: SecretResolver) -> None:
    assert resolver.forget("keyring:a/b") and not resolver.forget("keyring:a/b")
    assert not resolver.forget("env:TOKEN")


def check(rules: ReferenceRules, reference: str, author: Author) -> bool:
    try:
        rules.check(reference, SecretUse(author, "it"))
    except InvalidInput:
        return False
    return True


def test_only_the_owner_may_refer_to_everything(tmp_path: Path) -> None:
    rules = ReferenceRules(["LISTED"], tmp_path, ["env:TEAM_*", "keyring:team/*", "exec:*"])
    every = ["env:AWS", "env:TEAM_X", "keyring:team/a", "file:/etc/x", "exec:id", "env:LISTED"]
    for author in (Author.API, Author.STORED):
        permitted = [one for one in every if check(rules, one, author)]
        assert permitted == ["env:TEAM_X", "keyring:team/a", "env:LISTED"]
        for odd in ("env:TEAM_${exec:id", "env:TEAM_$X", "keyring:team/{x", "EXEC:id", "vault:x"):
            assert not check(rules, odd, author), odd
    assert all(check(rules, one, Author.OWNER) for one in every)


async def test_the_resolver_asks_the_rules_at_each_use(tmp_path: Path) -> None:
    source = FixedSource({"id": CANARY, "a/b": "kept"})
    resolver = SecretResolver({"AWS": CANARY}, tmp_path, {"exec": source, "keyring": source})
    use = SecretUse(Author.API, 'workflow "w"')
    for reference in ("exec:id", "keyring:a/b", "env:AWS", "file:/etc/hostname"):
        with pytest.raises(ConfigError, match='workflow "w" was written by the API'):
            await resolver.resolve(reference, use)
    with pytest.raises(ConfigError, match="written by the API"):
        await resolver.expand("Bearer ${exec:id}", use)
    with pytest.raises(ConfigError, match="written by the API"):
        resolver.resolve_local("env:AWS", use)
    assert await resolver.resolve("exec:id", OWN) == CANARY
