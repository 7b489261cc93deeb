"""Starts workflows by signed HTTP requests. Implements `core.triggers.WebhookReceiver`.

Two kinds of signatures, both HMAC-SHA256: that of the Standard Webhooks specification, over id,
time and body, and that of GitHub, over the body.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from typing import Any, NamedTuple

from dragoman.core.errors import ConfigError, InvalidInput
from dragoman.core.secret_rules import SecretUse
from dragoman.core.taint import EXTERNAL_NETWORK
from dragoman.core.triggers import MAX_BODY, Delivery, TriggerStore
from dragoman.wire.json import Malformed, decode
from dragoman.workflows.authorship import build_use
from dragoman.workflows.model import WEBHOOK, Trigger, Workflow
from dragoman.workflows.templates import EVENT_DATA, compile_value
from dragoman.workflows.triggers import (
    Occurrence,
    TriggeredRuns,
    WorkflowSet,
    build_labels,
    build_run_id,
    has_members,
    select_inputs,
)

log = logging.getLogger(__name__)

WINDOW_SECONDS = 300.0
"""How far the time of a signed request may be from the hub's."""
MAX_SIGNATURES = 5
"""Signatures of one request: several while a secret is replaced."""
MAX_ID = 200
MAX_VALUES = 20_000
"""Of a body: templates, records and checks look at each of them."""
ENCODED_SECRET = "whsec_"
"""Begins a secret in base64, as the specification has it."""
NOTHING_STARTED = Delivery("", False)

ResolveSecret = Callable[[str, SecretUse], Awaitable[str]]
"""Reads the secret of a reference. Raises `ConfigError`."""


class _Signed(NamedTuple):
    """What a request says of its signature."""

    content: bytes
    """What was signed."""
    signatures: tuple[bytes, ...]
    key: str
    """Identifies the delivery; it follows from what was signed."""


class WorkflowWebhooks:
    def __init__(
        self,
        workflows: WorkflowSet,
        runs: TriggeredRuns,
        store: TriggerStore,
        resolve: ResolveSecret,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._workflows = workflows
        self._runs = runs
        self._store = store
        self._resolve = resolve
        self._clock = clock
        self._no_secret = secrets.token_bytes(32)
        self._unreadable: set[str] = set()
        """References of secrets that could not be read, which was logged."""

    async def receive(
        self, name: str, headers: Mapping[bytes, bytes], body: bytes
    ) -> Delivery | None:
        signed = _read_signature(headers, body, self._clock())
        if signed is None:
            return None  # before any secret is read: anyone can send this
        workflow = self._workflows.get(name)
        trigger = await self._find_signer(workflow, signed)
        if workflow is None or trigger is None:
            return None
        if headers.get(b"x-github-event") == b"ping":
            return NOTHING_STARTED
        data = _decode_body(body)
        if trigger.match and not has_members(data, trigger.match):
            return NOTHING_STARTED
        id = build_run_id(name, signed.key)
        if self._store.has_delivery(id):
            return Delivery(id, False)
        started = await self._runs.start(workflow, _build(workflow, trigger, signed.key, data))
        self._store.add_delivery(started.id, self._clock())
        return Delivery(started.id, started.is_new)

    async def _find_signer(self, workflow: Workflow | None, signed: _Signed) -> Trigger | None:
        """Finds the trigger whose secret has signed the request. Takes the same steps if there is
        none, so that the time of the answer does not say which names exist."""
        found = None
        triggers = workflow.triggers if workflow is not None else ()
        hooks = [one for one in triggers if one.kind == WEBHOOK]
        for trigger in hooks:
            assert workflow is not None
            try:
                secret = await self._resolve(trigger.secret, build_use(workflow))
            except ConfigError as error:
                if trigger.secret not in self._unreadable:  # once: anyone can send requests
                    self._unreadable.add(trigger.secret)
                    log.error("a webhook cannot be verified: %s", error)
                continue
            self._unreadable.discard(trigger.secret)
            if _is_signed_by(signed, _decode_secret(secret)):
                found = found or trigger
        if not hooks:
            _is_signed_by(signed, self._no_secret)
        return found


def _read_signature(headers: Mapping[bytes, bytes], body: bytes, now: float) -> _Signed | None:
    """Reads the signature of a request; None if it has none that can be used now."""
    if len(body) > MAX_BODY:
        return None
    written = headers.get(b"webhook-signature")
    if written is None:
        found = _decode_hex(headers.get(b"x-hub-signature-256", b""))
        if found is None:
            return None
        # The id of the delivery is not signed: an equal body is the same delivery.
        return _Signed(body, (found,), f"github {found.hex()}")
    id, at = headers.get(b"webhook-id", b""), headers.get(b"webhook-timestamp", b"")
    if not id or len(id) > MAX_ID or not at.isdigit() or len(at) > 12:
        return None
    if abs(int(at) - now) > WINDOW_SECONDS:
        return None
    encoded = [one[3:] for one in written.split(b" ")[:MAX_SIGNATURES] if one.startswith(b"v1,")]
    decoded = [_decode_base64(one) for one in encoded]
    signatures = [one for one in decoded if one and len(one) == sha256().digest_size]
    if not signatures:
        return None
    key = f"webhook {id.decode('latin-1')}"
    return _Signed(b".".join([id, at, body]), tuple(signatures), key)


def _is_signed_by(signed: _Signed, secret: bytes) -> bool:
    wanted = hmac.new(secret, signed.content, sha256).digest()
    return any(hmac.compare_digest(wanted, one) for one in signed.signatures)


def _decode_secret(secret: str) -> bytes:
    if secret.startswith(ENCODED_SECRET):
        decoded = _decode_base64(secret.removeprefix(ENCODED_SECRET).encode("latin-1", "replace"))
        if decoded:
            return decoded
    return secret.encode("utf-8")


def _decode_hex(written: bytes) -> bytes | None:
    try:
        decoded = bytes.fromhex(written.decode("ascii").removeprefix("sha256="))
    except ValueError:
        return None
    return decoded if len(decoded) == sha256().digest_size else None


def _decode_base64(written: bytes) -> bytes | None:
    try:
        return base64.b64decode(written, validate=True)
    except binascii.Error:
        return None


def _decode_body(body: bytes) -> Any:
    try:
        return decode(body, MAX_VALUES)
    except Malformed as error:
        raise InvalidInput(f"the body of the webhook is not JSON: {error}") from None


def _build(workflow: Workflow, trigger: Trigger, key: str, data: Any) -> Occurrence:
    if trigger.inputs:
        inputs: Mapping[str, Any] = compile_value(trigger.inputs).render({EVENT_DATA: data})
    elif isinstance(data, Mapping):
        inputs = select_inputs(workflow, data)
    else:
        raise InvalidInput("the body of the webhook is not an object")
    return Occurrence(
        key=key,
        inputs=inputs,
        trigger={"kind": WEBHOOK, "delivery": key},
        labels=build_labels(workflow.name, "the body of a webhook", EXTERNAL_NETWORK),
    )
