"""The stored tokens for one server or agent."""

from __future__ import annotations

import msgspec

from dragoman.core.ports import CredentialId, CredentialStore
from dragoman.oauth.client.client_auth import ClientIdentity
from dragoman.oauth.client.grants import StoredToken
from dragoman.oauth.client.urls import covers
from dragoman.oauth.config import OAuthSettings

KIND = "token"


class TokenVault:
    """Keyed by holder, issuer and resource; of a holder, the login that was made last counts."""

    def __init__(
        self, name: str, resource_url: str, settings: OAuthSettings, store: CredentialStore
    ) -> None:
        self._name = name
        self._url = resource_url
        self._settings = settings
        self._store = store

    def load(self, holder: str) -> StoredToken | None:
        for id, value in self._store.find(KIND, self._name, holder):
            if not covers(id.resource, self._url):
                continue  # the URL of the server was changed: these tokens are not for it
            if value is None:
                return _build_unreadable(id)
            try:
                stored = msgspec.json.decode(value, type=StoredToken)
            except msgspec.DecodeError:
                return _build_unreadable(id)
            client = stored.client
            if client.source == "configured" and client.client_id != self._settings.client_id:
                return stored.end("its client_id has changed")
            if self._settings.issuer not in ("", stored.issuer):
                return stored.end("its issuer has changed")
            return stored
        return None

    def save(self, holder: str, stored: StoredToken) -> None:
        id = CredentialId(KIND, self._name, holder, stored.issuer, stored.resource)
        self._store.save(id, msgspec.json.encode(stored))

    def delete(self, holder: str, *, but: StoredToken | None = None) -> None:
        """Deletes the tokens of a holder, except those for the issuer and resource of `but`."""
        kept = None if but is None else (but.issuer, but.resource)
        for id in self._store.list(KIND, self._name):
            if id.holder == holder and (id.issuer, id.resource) != kept:
                self._store.delete(id)

    def list_holders(self) -> list[str]:
        return list(dict.fromkeys(id.holder for id in self._store.list(KIND, self._name)))


def _build_unreadable(id: CredentialId) -> StoredToken:
    problem = "the stored login cannot be decrypted; the key of the credentials has changed"
    client = ClientIdentity("", source="document")
    return StoredToken("", "", None, 0.0, (), (), id.issuer, id.resource, "", "", client, problem)
