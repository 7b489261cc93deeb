"""URLs, by table: unambiguous ones are accepted, all others refused."""

from __future__ import annotations

import pytest

from dragoman.net.urls import LONGEST, BadUrl, join_url, parse_url


@pytest.mark.parametrize(
    ("text", "origin", "target"),
    [
        ("http://example.com", ("http", "example.com", 80), "/"),
        ("HTTPS://Example.COM:8443/a?b=c#d", ("https", "example.com", 8443), "/a?b=c"),
        ("http://example.com?q", ("http", "example.com", 80), "/?q"),
        ("http://127.0.0.1:3000/mcp", ("http", "127.0.0.1", 3000), "/mcp"),
        ("http://[::1]:3000/mcp", ("http", "::1", 3000), "/mcp"),
        ("http://[0:0::0:1]/", ("http", "::1", 80), "/"),
        ("http://[::ffff:127.0.0.1]/", ("http", "::ffff:7f00:1", 80), "/"),
        ("http://my_service/", ("http", "my_service", 80), "/"),
        ("http://xn--bcher-kva.example/", ("http", "xn--bcher-kva.example", 80), "/"),
        ("http://a.b/@c:d", ("http", "a.b", 80), "/@c:d"),
    ],
)
def test_url_is_parsed_into_its_parts(text: str, origin: tuple[str, str, int], target: str) -> None:
    url = parse_url(text)
    assert url.origin == origin
    assert url.target == target
    assert parse_url(url.full).origin == origin


@pytest.mark.promise("B11")
@pytest.mark.parametrize(
    "text",
    [
        "http://2130706433/", "http://0x7f000001/", "http://0x7f.1/", "http://127.1/", "http://0/",
        "http://0177.0.0.1/", "http://127.0.0.1./", "http://127.0.0.0x1/", "http://1.2.3.4.5/",
        "http://\uff11\uff12\uff17.0.0.1/", "http://①②⑦.0.0.1/", "http://127。0。0。1/", "http://bücher.example/",
        "http://user@127.0.0.1/", "http://user:pass@example.com/", "http://@example.com/",
        "http://example.com\\@127.0.0.1/", "http://example.com\t/", "http://exa mple.com/",
        "http://example.com/\r\nhost:x", "http://example.com/ü", " http://example.com/",
        "http://example.com/a b", "http://%31%32%37.0.0.1/", "http://[fe80::1%25eth0]/",
        "http://[::1/", "http://::1/", "http://[127.0.0.1]/", "http://[::1]x/", "http:///x",
        "http://", "http:/example.com/", "http://example.com:/", "http://example.com:0/",
        "http://example.com:65536/", "http://example.com:x/", "http://a..b/", "http://.a/",
        "http://example.com./", "http://-a.com/", "http://" + "a" * 64 + ".com/",
        "http://" + "a." * 127 + "com/", "http://a/" + "x" * LONGEST,
        "ftp://example.com/", "file:///etc/passwd", "gopher://x/", "//example.com/", "example.com",
        "javascript:alert(1)", "unix:///tmp/x", "ws://example.com/", "",
    ],
)  # fmt: skip
def test_ambiguous_url_is_refused(text: str) -> None:
    with pytest.raises(BadUrl):
        parse_url(text)


def test_a_password_in_a_url_is_refused_with_advice() -> None:
    with pytest.raises(BadUrl, match="a user name or password in a URL is not accepted"):
        parse_url("http://user:secret@example.com/")


@pytest.mark.parametrize(
    ("location", "full"),
    [
        ("/c", "http://a.b/c"),
        ("c?d", "http://a.b/x/c?d"),
        ("//c.d/e", "http://c.d/e"),
        ("https://c.d/e", "https://c.d/e"),
        ("../../..", "http://a.b/"),
        ("?q", "http://a.b/x/y?q"),
    ],
)
def test_redirect_is_resolved_against_its_source(location: str, full: str) -> None:
    assert join_url(parse_url("http://a.b/x/y"), location).full == full


@pytest.mark.parametrize("location", ["http://u:p@c.d/", "ht\ttp://x/", "http://127.1/", "file:///e",
                                      "http://[::1", "http://é.example/"])  # fmt: skip
def test_redirect_to_an_invalid_url_is_refused(location: str) -> None:
    with pytest.raises(BadUrl):
        join_url(parse_url("http://a.b/x/y"), location)


def test_a_url_is_rendered_without_its_path_and_query() -> None:
    assert parse_url("http://a.b:81/c?key=secret").rendered == "http://a.b:81/…"
    assert parse_url("http://a.b").rendered == "http://a.b/"
