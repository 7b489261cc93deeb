"""URLs, arguments and error pages as they are rendered without secrets."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.cpu_time import measure_cpu

from dragoman.core.urls import (
    MAX_MASKED,
    hide_secrets,
    render_arguments,
    render_origin,
    render_uri,
    render_url,
)


@pytest.mark.parametrize(
    ("url", "origin", "masked"),
    [
        ("https://h", "https://h", "https://h"),
        ("https://h:81/", "https://h:81/", "https://h:81/"),
        ("https://[::1]:81/mcp", "https://[::1]:81/…", "https://[::1]:81/mcp"),
        ("HTTPS://h/mcp?key=K#f", "https://h/…", "https://h/mcp?…"),
        ("https://h?key=K", "https://h/…", "https://h?…"),
        ("http://user:pass@h/x", "http://h/…", "http://h/x"),
        ("http://h/@bank.example/a2a", "http://h/…", "http://h/@bank.example/a2a"),
        ("http://h/x://u@bank.example/", "http://h/…", "http://h/x://u@bank.example/"),
        ("http://h\\@bank.example/", "http://h/…", "http://h\\@bank.example/"),
        ("http://user:pa/ss@h/x", "http://…/…", "http://…/…"),
        ("https://h/v1/streamable-http/n8n", "https://h/…", "https://h/v1/streamable-http/n8n"),
        ("https://h/sk-4bT9aXYZkey12345/mcp", "https://h/…", "https://h/…/mcp"),
        ("https://h/550e8400-e29b-41d4-a716-446655440000/", "https://h/…", "https://h/…/"),
        ("https://h/%73k-4bT9aXYZkey12345", "https://h/…", "https://h/…"),
        (f"https://h/{'word-' * 12}", "https://h/…", "https://h/…"),
        ("http://h\r\nforged/x", "http://…/…", "http://…/…"),
        ("localhost:9000/agent", "localhost:9000/…", "localhost:9000/…"),
        ("4bT9aXYZkey12345", "…", "…"),
        ("", "…", "…"),
    ],
)
def test_origin_is_public_and_a_masked_path_for_admins(url: str, origin: str, masked: str) -> None:
    assert render_origin(url) == origin
    assert render_url(url) == masked


@pytest.mark.parametrize(
    ("uri", "rendered"),
    [
        ("file:///home/ann/notes-2024.md", "file:///home/ann/notes-2024.md"),
        ("db.postgres://h:5432/customers/schema", "db.postgres://h:5432/customers/schema"),
        ("db://user:pass@h/table?key=K&plain#f", "db://h/table?key=…&plain=…"),
        ("db://4bT9aXYZkey12345", "db://…"),
        ("db://h/4bT9aXYZkey12345/rows", "db://h/…/rows"),
        ("urn:note:4bT9aXYZkey12345", "urn:note:…"),
        ("urn:note:shopping", "urn:note:shopping"),
    ],
)
def test_resource_uri_is_masked_recognizably(uri: str, rendered: str) -> None:
    assert render_uri(uri) == rendered


def test_secrets_in_program_arguments_are_masked() -> None:
    given = ["-y", "@modelcontextprotocol/server-github", "/srv/data", "--api-key", "short"]
    given += ["--token=short", "--root=/srv", "https://h/4bT9aXYZkey12345?k=v", "4bT9aXYZkey12345"]
    rendered = ["-y", "@modelcontextprotocol/server-github", "/srv/data", "--api-key", "…"]
    given += ["-e", "DB_PASS=short"]
    rendered += ["--token=…", "--root=/srv", "https://h/…?…", "…"]
    rendered += ["-e", "DB_PASS=…"]
    assert render_arguments(given) == rendered


def test_error_page_does_not_echo_sent_data() -> None:
    page = "Cannot POST /KEY/mcp, key=abcdef%21 or abcdef!, Bearer tok-tok-tok from h"
    url = "https://h/KEY/mcp?key=abcdef%21"
    hidden = hide_secrets(page, url, ["Bearer tok-tok-tok"])
    assert hidden == "Cannot POST /…, key=… or …, … from h"


@pytest.mark.parametrize("render", [render_uri, render_url, lambda text: render_arguments([text])])
def test_a_long_address_is_cut_before_it_is_masked(render: Callable[[str], object]) -> None:
    short, long = (f"mem://c/{'a/' * count}" for count in (500, 250_000))
    # 500 times the segments: masked one by one, they take 500 times as long.
    assert measure_cpu(lambda: render(long)) < 50 * measure_cpu(lambda: render(short))


def test_an_address_is_cut_after_a_whole_segment() -> None:
    begun = f"mem://c/{'a/' * 990}"
    assert len(begun) < MAX_MASKED
    assert render_uri(f"{begun}sk4bT9aXYZkey12345{'x' * 50}") == f"{begun}…"
    assert render_uri("key" * MAX_MASKED) == "…"
    assert render_arguments([f"--dir={'word' * MAX_MASKED}"]) == ["…"]


def test_a_text_from_an_address_of_any_length_is_searched_in_bounded_time() -> None:
    assert hide_secrets("at /a/b", f"https://h/{'a/' * 100_000}") == "…"
