"""TLS between hubs: both ends of a connection have the same certificate, and accept no other.

Every hub derives the certificate and its key from the key of the cluster, so that they are the same
everywhere and nothing has to be distributed. Ed25519 signatures have no random part.
"""

from __future__ import annotations

import hmac
import os
import ssl
from dataclasses import dataclass
from datetime import UTC, datetime

NAME = "dragoman cluster"
BEGIN, END = datetime(2020, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)
"""Hubs whose clocks are wrong still reach each other."""
PURPOSE = b"internal connection"


@dataclass(frozen=True, slots=True)
class ClusterTls:
    server: ssl.SSLContext
    client: ssl.SSLContext


def build_tls(key: bytes) -> ClusterTls:
    """Builds both ends of the connections between hubs that have this key."""
    certificate, private_key = derive_certificate(key)
    return ClusterTls(
        *(
            _build_context(protocol, certificate, private_key)
            for protocol in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT)
        )
    )


def derive_certificate(key: bytes) -> tuple[bytes, bytes]:
    """Derives the certificate of the cluster and its private key, in PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
    )
    from cryptography.x509.oid import NameOID

    private = Ed25519PrivateKey.from_private_bytes(hmac.digest(key, PURPOSE, "sha256"))
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(1)
        .not_valid_before(BEGIN)
        .not_valid_after(END)
        .sign(private, None)
    )
    secret = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return certificate.public_bytes(Encoding.PEM), secret


def _build_context(protocol: int, certificate: bytes, private_key: bytes) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the certificate itself is pinned
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=certificate.decode("ascii"))
    context.set_alpn_protocols(["http/1.1"])
    # `ssl` reads files only; these are never on a disk.
    pipes = [_write_pipe(certificate), _write_pipe(private_key)]
    try:
        context.load_cert_chain(*(f"/dev/fd/{one}" for one in pipes))
    finally:
        for one in pipes:
            os.close(one)
    return context


def _write_pipe(data: bytes) -> int:
    """Returns the reading end of a pipe, whose buffer holds all of the data."""
    reading, writing = os.pipe()
    try:
        os.write(writing, data)
    finally:
        os.close(writing)
    return reading
