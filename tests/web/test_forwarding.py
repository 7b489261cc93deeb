"""The seals of requests between hubs."""

from __future__ import annotations

import time
from hashlib import sha256

import pytest

from dragoman.web import forwarding
from dragoman.web.forwarding import ClusterSecret

BODY = b"a request"


def test_a_seal_is_good_once_for_its_receiver_and_its_body() -> None:
    ours, theirs = ClusterSecret(b"k" * 32), ClusterSecret(b"k" * 32)
    header, proof = ours.seal("aaaaaaaa", "bbbbbbbb", BODY)
    opened = theirs.open(header, "bbbbbbbb")
    assert opened is not None
    text, digest = opened
    assert theirs.prove(text) == proof
    assert digest == sha256(BODY).hexdigest()
    assert theirs.open(header, "bbbbbbbb") is None  # used
    assert theirs.open(ours.seal("aaaaaaaa", "bbbbbbbb", BODY)[0], "cccccccc") is None


def test_a_seal_of_another_secret_or_changed_text_is_refused() -> None:
    ours, other = ClusterSecret(b"k" * 32), ClusterSecret(b"x" * 32)
    header, proof = ours.seal("aaaaaaaa", "bbbbbbbb", BODY)
    assert other.open(header, "bbbbbbbb") is None
    assert other.prove(header.rpartition(" ")[0]) != proof
    assert ours.open(header.replace("aaaaaaaa", "cccccccc"), "bbbbbbbb") is None
    for wrong in ("", "1", " ", header[:-1], header + "0"):
        assert ours.open(wrong, "bbbbbbbb") is None


def test_an_old_seal_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = ClusterSecret(b"k" * 32)
    header, _ = secret.seal("aaaaaaaa", "bbbbbbbb", BODY)
    later = time.time() + forwarding.SKEW_SECONDS + 1
    monkeypatch.setattr(time, "time", lambda: later)
    assert secret.open(header, "bbbbbbbb") is None
