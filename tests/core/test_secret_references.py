"""References to secrets: what is read, what is refused, and that no error contains a secret."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dragoman.core.errors import ConfigError
from dragoman.core.secret_references import (
    MAX_SECRET_BYTES,
    SecretResolver,
    find_embedded_variables,
    is_reference,
    list_embedded,
    render_reference,
)

CANARY = "canary-5f0c1d"


class FixedSource:
    def __init__(self, secrets: dict[str, str]) -> None:
        self.secrets = secrets

    async def read(self, name: str, owner: str) -> str:
        return self.secrets.get(name, "")

    def forget(self, name: str) -> bool:
        return self.secrets.pop(name, None) is not None


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
    assert await resolver.resolve("env:TOKEN", "it") == CANARY
    assert await resolver.resolve("file:tokens/one", "it") == CANARY
    assert await resolver.resolve(f"file:{tmp_path}/tokens/one", "it") == CANARY
    assert await resolver.resolve("keyring:a/b", "it") == "kept"


async def test_expands_references_in_texts(resolver: SecretResolver) -> None:
    text = "Bearer ${TOKEN} ${env:TOKEN} ${keyring:a/b} ${not a reference}"
    expanded = await resolver.expand(text, "it")
    assert expanded == f"Bearer {CANARY} {CANARY} kept ${{not a reference}}"
    assert list_embedded(text) == ["env:TOKEN", "env:TOKEN", "keyring:a/b"]
    assert find_embedded_variables(text) == ["TOKEN", "TOKEN"]


async def test_a_secret_is_not_expanded_again(tmp_path: Path) -> None:
    resolver = SecretResolver({"A": "${B}", "B": CANARY}, tmp_path)
    assert await resolver.expand("${A}", "it") == "${B}"


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
        await resolver.resolve(reference, 'server "s"')
    assert problem in str(caught.value) and 'server "s"' in str(caught.value)
    assert CANARY not in str(caught.value)


async def test_a_link_out_of_the_folder_is_refused(
    resolver: SecretResolver, tmp_path: Path
) -> None:
    write_secret(tmp_path / "elsewhere", CANARY)
    folder = tmp_path / "tokens"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path / "elsewhere")
    assert await resolver.resolve("file:tokens/link", "it") == CANARY
    with pytest.raises(ConfigError, match="outside of"):
        await resolver.resolve("file:tokens/link", "it", folder.resolve())


async def test_a_pipe_does_not_block(resolver: SecretResolver, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(ConfigError, match="not a regular file"):
        await resolver.resolve("file:pipe", "it")


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
