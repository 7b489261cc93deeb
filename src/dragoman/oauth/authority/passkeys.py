"""Passkeys (WebAuthn): registration for a signed-in user, and sign-in without a user name.

A challenge is not stored: it is sealed for the browser that it is sent to, and expires.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import struct
import time
from typing import Any
from urllib.parse import urlsplit

from dragoman.core.errors import InvalidInput
from dragoman.core.users import UserRecord, Users
from dragoman.oauth.authority.protocol import FindBase
from dragoman.wire.json import decode

CHALLENGE_SECONDS = 300.0
MAX_CREDENTIAL = 16 * 1024
SCRIPT = """"use strict";
// Asks the browser for a passkey and sends what it returns with the form.
const decode = text => Uint8Array.from(
  atob(text.replace(/-/g, "+").replace(/_/g, "/")), letter => letter.charCodeAt(0));
const encode = data => btoa(String.fromCharCode(...new Uint8Array(data)))
  .replace(/\\+/g, "-").replace(/\\//g, "_").replace(/=+$/, "");
const ask = {
  async get(options) {
    options.challenge = decode(options.challenge);
    const made = await navigator.credentials.get({publicKey: options});
    const {authenticatorData, clientDataJSON, signature, userHandle} = made.response;
    return [made, {
      authenticatorData: encode(authenticatorData), clientDataJSON: encode(clientDataJSON),
      signature: encode(signature), userHandle: userHandle ? encode(userHandle) : null}];
  },
  async create(options) {
    options.challenge = decode(options.challenge);
    options.user.id = decode(options.user.id);
    for (const one of options.excludeCredentials || []) one.id = decode(one.id);
    const made = await navigator.credentials.create({publicKey: options});
    const {attestationObject, clientDataJSON} = made.response;
    return [made, {
      attestationObject: encode(attestationObject), clientDataJSON: encode(clientDataJSON)}];
  },
};
for (const form of document.querySelectorAll("form[data-passkey]")) {
  if (!window.PublicKeyCredential) continue;
  form.hidden = false;
  form.addEventListener("submit", async event => {
    event.preventDefault();
    try {
      const [made, response] = await ask[form.dataset.passkey](JSON.parse(form.dataset.options));
      form.elements.credential.value = JSON.stringify(
        {id: made.id, rawId: encode(made.rawId), type: made.type, response});
      if (event.submitter && event.submitter.name) {
        const chosen = document.createElement("input");
        chosen.type = "hidden";
        chosen.name = event.submitter.name;
        chosen.value = event.submitter.value;
        form.append(chosen);
      }
      form.submit();
    } catch (problem) {
      form.querySelector("[data-problem]").textContent = "No passkey was used: " + problem.message;
    }
  });
}
"""


class Passkeys:
    def __init__(self, users: Users, find_base: FindBase, key: bytes) -> None:
        """`key` seals challenges; several hubs share it."""
        self._users = users
        self._find_base = find_base
        self._key = hmac.digest(key, b"passkey challenges", "sha256")

    def build_options(self, user: UserRecord, id: str) -> str:
        """Builds the options with which the browser makes a passkey, as JSON; empty where it
        cannot. `id` is that of the browser session."""
        host = self._find_host()
        if (lib := load_library()) is None or not host:
            return ""
        kinds = lib.helpers.structs
        options = lib.generate_registration_options(
            rp_id=host,
            rp_name="Dragoman",
            user_name=user.name,
            user_id=user.handle,
            challenge=self._seal_challenge(id),
            authenticator_selection=kinds.AuthenticatorSelectionCriteria(
                resident_key=kinds.ResidentKeyRequirement.REQUIRED,
                user_verification=kinds.UserVerificationRequirement.REQUIRED,
            ),
            exclude_credentials=[
                kinds.PublicKeyCredentialDescriptor(id=one.id)
                for one in self._users.list_passkeys(user.name)
            ],
        )
        return str(lib.options_to_json(options))

    def build_sign_in_options(self, id: str) -> str:
        """Builds the options with which the browser uses a passkey, as JSON; empty where it cannot.
        `id` is that of the browser."""
        host = self._find_host()
        if (lib := load_library()) is None or not host:
            return ""
        options = lib.generate_authentication_options(
            rp_id=host,
            challenge=self._seal_challenge(id),
            user_verification=lib.helpers.structs.UserVerificationRequirement.REQUIRED,
        )
        return str(lib.options_to_json(options))

    def add(self, user: UserRecord, credential: str, id: str) -> None:
        """Adds the passkey that the browser has made. Raises `InvalidInput`."""
        lib = self._prepare(credential)
        try:
            found = lib.verify_registration_response(
                credential=credential,
                expected_challenge=self._find_challenge(credential, id),
                expected_rp_id=self._find_host(),
                expected_origin=self._find_base(),
                require_user_verification=True,
            )
        except (lib.helpers.exceptions.WebAuthnException, ValueError, KeyError) as error:
            raise InvalidInput(f"the passkey was not added: {error}") from None
        self._users.add_passkey(
            user.name, found.credential_id, found.credential_public_key, found.sign_count
        )

    def verify_sign_in(self, credential: str, id: str) -> UserRecord:
        """Returns the user whose passkey it is. Raises `InvalidInput`."""
        lib = self._prepare(credential)
        try:
            parsed = lib.helpers.parse_authentication_credential_json(credential)
            passkey = self._users.find_passkey(parsed.raw_id)
            user = self._users.find(passkey.user) if passkey is not None else None
            handle = parsed.response.user_handle
            if passkey is None or user is None or (handle and handle != user.handle):
                raise InvalidInput("unknown passkey")
            found = lib.verify_authentication_response(
                credential=parsed,
                expected_challenge=self._find_challenge(credential, id),
                expected_rp_id=self._find_host(),
                expected_origin=self._find_base(),
                credential_public_key=passkey.public_key,
                credential_current_sign_count=passkey.sign_count,
                require_user_verification=True,
            )
        except (lib.helpers.exceptions.WebAuthnException, ValueError, KeyError) as error:
            raise InvalidInput(f"the passkey is not accepted: {error}") from None
        self._users.note_passkey_used(passkey.id, found.new_sign_count)
        return user

    def _prepare(self, credential: str) -> Any:
        lib = load_library()
        if lib is None or not self._find_host() or len(credential) > MAX_CREDENTIAL:
            raise InvalidInput("passkeys cannot be used here")
        return lib

    def _find_host(self) -> str:
        """The domain that passkeys belong to; empty for an IP address, which cannot have any."""
        host = urlsplit(self._find_base()).hostname or ""
        try:
            ipaddress.ip_address(host)
        except ValueError:
            return host
        return ""

    # --- challenges ------------------------------------------------------------------------------

    def _seal_challenge(self, id: str) -> bytes:
        head = secrets.token_bytes(16) + struct.pack(">d", time.time() + CHALLENGE_SECONDS)
        return head + self._sign(head, id)

    def _find_challenge(self, credential: str, id: str) -> bytes:
        """Returns the challenge in the browser's answer if this hub has sealed it for that browser.
        Raises `InvalidInput`."""
        lib = load_library()
        assert lib is not None
        helpers = lib.helpers
        try:
            response = decode(credential.encode("utf-8", "replace"))["response"]
            client = helpers.parse_client_data_json(
                helpers.base64url_to_bytes(response["clientDataJSON"])
            )
        except (ValueError, KeyError, TypeError, helpers.exceptions.WebAuthnException):
            raise InvalidInput("the browser's answer is invalid") from None
        challenge = bytes(client.challenge)
        head, seal = challenge[:24], challenge[24:]
        if len(head) < 24 or not hmac.compare_digest(seal, self._sign(head, id)):
            raise InvalidInput("the challenge is not the hub's")
        if struct.unpack(">d", head[16:])[0] < time.time():
            raise InvalidInput("the page is too old")
        return challenge

    def _sign(self, head: bytes, id: str) -> bytes:
        return hmac.new(self._key, hashlib.sha256(id.encode()).digest() + head, "sha256").digest()


def load_library() -> Any:
    """Loads the library at the first use; None if it is not installed."""
    try:
        import webauthn
    except ImportError:
        return None
    return webauthn
