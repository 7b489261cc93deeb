"""The seals of requests between hubs."""

from __future__ import annotations

import time
from contextvars import copy_context
from hashlib import sha256

import pytest

from dragoman.core.cluster import prepay, take_prepayment
from dragoman.web import forwarding
from dragoman.web.forwarding import ClusterSecret
from dragoman.web.http.body_budget import BodyBudget

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


def test_bytes_of_a_body_move_to_the_principal_of_a_forwarded_request() -> None:
    budget = BodyBudget(100)
    for _ in range(10):  # the first principal, none, has its share again each time
        assert budget.take(None, 40)
        budget.move(None, "anna", 40)
        assert not budget.take("anna", 20) and budget.take(None, 50)
        budget.give_back(None, 50)
        budget.give_back("anna", 40)
    assert budget.held == 0


def test_a_request_that_was_paid_elsewhere_is_not_charged_once() -> None:
    assert not take_prepayment()
    with prepay():
        assert take_prepayment() and not take_prepayment()
    with prepay():
        begun = copy_context()  # of work that outlasts the request
    assert not begun.run(take_prepayment) and not take_prepayment()
