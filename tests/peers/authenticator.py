"""A passkey authenticator in software: makes credentials and signs challenges, as a browser would.

Its fields let a test lie about the origin, the counter or whether the user was verified.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from webauthn.helpers import base64url_to_bytes, bytes_to_base64url, encode_cbor

PRESENT, VERIFIED, ATTESTED = 0x01, 0x04, 0x40


class SoftAuthenticator:
    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.flags = PRESENT | VERIFIED
        self.count = 0
        self.id = secrets.token_bytes(32)
        self.handle = b""
        self._key = ec.generate_private_key(ec.SECP256R1())

    def create(self, options: str) -> str:
        """Answers `navigator.credentials.create`."""
        given = json.loads(options)
        self.handle = base64url_to_bytes(given["user"]["id"])
        numbers = self._key.public_key().public_numbers()
        x, y = (number.to_bytes(32, "big") for number in (numbers.x, numbers.y))
        public = encode_cbor({1: 2, 3: -7, -1: 1, -2: x, -3: y})
        attested = bytes(16) + len(self.id).to_bytes(2, "big") + self.id + public
        data = self._authenticate(given["rp"]["id"], ATTESTED) + attested
        made = encode_cbor({"fmt": "none", "attStmt": {}, "authData": data})
        client = self._describe_client("webauthn.create", given["challenge"])
        return self._render({"attestationObject": made, "clientDataJSON": client})

    def get(self, options: str) -> str:
        """Answers `navigator.credentials.get`."""
        given = json.loads(options)
        self.count += 1
        data = self._authenticate(given["rpId"])
        client = self._describe_client("webauthn.get", given["challenge"])
        signed = data + hashlib.sha256(client).digest()
        signature = self._key.sign(signed, ec.ECDSA(hashes.SHA256()))
        return self._render(
            {
                "authenticatorData": data,
                "clientDataJSON": client,
                "signature": signature,
                "userHandle": self.handle,
            }
        )

    def _authenticate(self, host: str, more: int = 0) -> bytes:
        flags = bytes([self.flags | more])
        return hashlib.sha256(host.encode()).digest() + flags + self.count.to_bytes(4, "big")

    def _describe_client(self, kind: str, challenge: str) -> bytes:
        told = {"type": kind, "challenge": challenge, "origin": self.origin, "crossOrigin": False}
        return json.dumps(told).encode()

    def _render(self, response: dict[str, Any]) -> str:
        encoded = {name: bytes_to_base64url(value) for name, value in response.items()}
        id = bytes_to_base64url(self.id)
        return json.dumps({"id": id, "rawId": id, "type": "public-key", "response": encoded})
