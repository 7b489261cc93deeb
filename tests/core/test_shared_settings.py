"""The addresses of hubs in `[cluster]`."""

from __future__ import annotations

import pytest

from dragoman.config import holds_secrets, parse
from dragoman.core.errors import ConfigError
from dragoman.core.shared_settings import check_addresses, parse_listen


@pytest.mark.parametrize(
    ("listen", "found"),
    [
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("hub-1.internal:50060", ("hub-1.internal", 50060)),
        ("[::1]:50060", ("::1", 50060)),
        ("/run/hub.sock", None),
    ],
)
def test_a_listener_has_a_port_or_a_path(listen: str, found: object) -> None:
    assert parse_listen(listen) == found
    check_addresses(listen, None)


@pytest.mark.parametrize(
    "listen", ["", "50060", ":50060", "hub", "hub:", "hub:x", "hub:70000", "http://h:1", "h:1/x"]
)
def test_an_invalid_listener_is_refused(listen: str) -> None:
    with pytest.raises(ConfigError, match=r"\[cluster\] listen = .* is invalid: write HOST:PORT"):
        parse_listen(listen)


@pytest.mark.parametrize("listen", ["0.0.0.0:50060", "[::]:50060"])
def test_a_listener_on_all_addresses_says_by_which_one_others_reach_it(listen: str) -> None:
    with pytest.raises(ConfigError, match=r"needs \[cluster\] advertise"):
        check_addresses(listen, None)
    check_addresses(listen, "10.0.0.11:50060")


@pytest.mark.parametrize(
    "advertise", ["", "10.0.0.1", "10.0.0.1:0", "0.0.0.0:5", "https://hub.example.com:5", "/a/b"]
)
def test_an_advertised_address_that_others_cannot_use_is_refused(advertise: str) -> None:
    with pytest.raises(ConfigError, match=r"\[cluster\] advertise = .* is invalid"):
        check_addresses("127.0.0.1:0", advertise)


def test_the_configuration_names_the_line_of_an_invalid_address() -> None:
    for text, line in (
        ('[cluster]\nsecret = "env:S"\nlisten = "hub"\n', "line 3: .*listen"),
        ('[cluster]\nadvertise = "hub"\n', "line 2: .*advertise"),
        ('[store]\nurl = "postgresql://u:a@b@h/d"\n', "line 2: .*url is invalid"),
    ):
        with pytest.raises(ConfigError, match=line):
            parse(text)


@pytest.mark.parametrize(
    ("text", "is_secret"),
    [
        ('[store]\nurl = "postgresql://u:p@h/d"\n', True),
        ('[store]\nurl = "postgresql://u@h/d?password=p"\n', True),
        ('[store]\nurl = "postgresql://u@h/d"\n', False),
        ('[cluster]\nsecret = "0123456789abcdef0123456789abcdef"\n', True),
        ('[cluster]\nsecret = "env:SECRET"\n[store]\nurl = "file:a:b@c"\n', False),
        ('[redis]\nurl = "redis://:p@h"\n', True),
    ],
)
def test_a_file_with_secrets_must_be_private(text: str, is_secret: bool) -> None:
    assert holds_secrets(parse(text)) == is_secret
