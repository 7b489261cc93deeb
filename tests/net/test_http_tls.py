"""TLS: the name is verified, and a redirect does not lead out of it."""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Sequence
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.net.raw_server import BOUND, OK, Talk, a_client, always, listening, once

from dragoman.core.errors import BadReply, Unreachable


def certificate(folder: Path, host: str) -> ssl.SSLContext:
    """A server's side of TLS for `host`; its certificate, in `folder`, is its own authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    chain = folder / "cert.pem"
    chain.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret = folder / "key.pem"
    secret.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain, secret)
    return context


async def here(host: str, port: int) -> Sequence[str]:
    return ["127.0.0.1"]


async def test_a_server_with_a_trusted_certificate_for_its_name_is_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = certificate(tmp_path, "good.test")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    async with listening(always(OK), tls=tls) as peer, a_client(here) as client:
        url = f"https://good.test:{peer.port}/"
        outlet = client.open_configured(url, allow_private=True)
        for _ in range(2):
            reply = await outlet.request("POST", url, {}, b"body", timeout=BOUND)
            assert await reply.body.read(10) == b"ok"
        assert peer.connections == 1


async def test_body_ended_by_connection_close_is_read_over_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = certificate(tmp_path, "good.test")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    answer = once(b"HTTP/1.1 200 OK\r\n\r\nhello")
    async with listening(answer, tls=tls) as peer, a_client(here) as client:
        url = f"https://good.test:{peer.port}/"
        reply = await client.open_configured(url, allow_private=True).request(
            "GET", url, {}, timeout=BOUND
        )
        assert await reply.body.read(10) == b"hello"


@pytest.mark.parametrize("trusted", [True, False], ids=["another name", "not trusted"])
async def test_server_with_a_wrong_certificate_is_refused(
    trusted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = certificate(tmp_path, "evil.test" if trusted else "good.test")
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    async with listening(always(OK), tls=tls) as peer, a_client(here) as client:
        url = f"https://good.test:{peer.port}/"
        outlet = client.open_configured(url, allow_private=True)
        with pytest.raises(Unreachable, match="its certificate is not trusted") as caught:
            await outlet.request("GET", url, {}, timeout=BOUND)
        assert not caught.value.sent
        assert not peer.requests


async def test_server_without_tls_is_unreachable() -> None:
    async def talk(connection: Talk) -> None:
        await connection.say(OK)
        await connection.gone()

    async with listening(talk) as peer, a_client(here) as client:
        url = f"https://good.test:{peer.port}/"
        outlet = client.open_configured(url, allow_private=True)
        with pytest.raises(Unreachable, match="could not connect to") as caught:
            await outlet.request("GET", url, {}, timeout=BOUND)
        assert not caught.value.sent


async def test_a_redirect_from_https_to_http_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls = certificate(tmp_path, "good.test")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    async with listening(always(OK)) as plain, a_client(here) as client:
        location = f"http://good.test:{plain.port}/".encode()
        moved = b"HTTP/1.1 307 x\r\nlocation: " + location + b"\r\ncontent-length: 0\r\n\r\n"
        async with listening(always(moved), tls=tls) as peer:
            url = f"https://good.test:{peer.port}/"
            outlet = client.open_configured(url, allow_private=True)
            with pytest.raises(BadReply, match="redirects from https to http, which is refused"):
                await outlet.request("POST", url, {}, b"body", timeout=BOUND)
        assert plain.connections == 0
