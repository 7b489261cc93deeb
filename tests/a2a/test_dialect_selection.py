"""Selection of the dialect of a request and the operation of a path."""

from __future__ import annotations

from typing import Any

import pytest

from dragoman.a2a.protocol.dialects import (
    BY_VERSION,
    SHARED,
    choose,
    choose_shared,
    find_traits,
    v01,
    v03,
    v03_unmarked,
    v10,
    version_from_card,
)
from dragoman.a2a.protocol.dialects.operations import OPS
from dragoman.a2a.protocol.errors import A2aError

TYPED = {"message": {"parts": [{"type": "text", "text": "x"}]}}
KINDED = {"message": {"parts": [{"kind": "text", "text": "x"}]}}
PLAIN = {"message": {"parts": [{"text": "x"}]}}


@pytest.mark.promise("J3")
@pytest.mark.parametrize(
    ("version", "dialect"),
    [
        ("1.0", v10),
        ("1.0.1", v10),
        (" 1.0 ", v10),
        ("0.3", v03),
        ("0.3.0", v03),
        ("0.2", v03),
        ("0.2.5", v03),
        ("0.1", v01),
    ],
)
def test_explicit_version_wins(version: str, dialect: Any) -> None:
    for method in ("SendMessage", "message/send", "tasks/send", None):
        for params in (TYPED, KINDED, PLAIN):
            assert choose(version, method, params, True) is dialect


@pytest.mark.parametrize("version", ["1.7", "2.0", "0.4", "1", "one", "1.0; 0.3", "1.0.x", "v1.0"])
def test_unsupported_version_is_refused(version: str) -> None:
    with pytest.raises(A2aError) as caught:
        choose(version, "SendMessage", PLAIN, False)
    assert caught.value.reason == "VERSION_NOT_SUPPORTED"
    assert version in caught.value.message
    assert set(caught.value.metadata["supportedVersions"].split(",")) == set(BY_VERSION)


@pytest.mark.promise("J3")
@pytest.mark.parametrize(
    ("method", "params", "dialect"),
    [
        ("SendMessage", PLAIN, v10),
        ("ListTasks", {}, v10),
        ("message/send", KINDED, v03),
        ("message/send", TYPED, v03),
        ("message/send", PLAIN, v03_unmarked),
        ("message/stream", PLAIN, v03_unmarked),
        ("message/stream", None, v03),
        ("tasks/get", {"id": "x"}, v03),
        ("tasks/send", TYPED, v01),
        ("tasks/send", PLAIN, v01),
        ("tasks/sendSubscribe", TYPED, v01),
        ("tasks/pushNotification/set", {}, v01),
        ("tasks/pushNotificationConfig/set", {}, v03),
        ("no/such", {}, v03),
        ("NoSuch", {}, v10),
        (None, TYPED, v01),
        (None, KINDED, v03),
        (None, PLAIN, v10),
        (None, None, v10),
        (None, {"message": {"parts": [7]}}, v10),
    ],
)
def test_version_is_inferred_from_method_then_parts(
    method: str | None, params: Any, dialect: Any
) -> None:
    assert choose(None, method, params, False) is dialect
    assert choose("", method, params, False) is dialect


def test_the_task_decides_the_dialect_of_a_shared_method() -> None:
    assert choose_shared("0.1") is v01
    for created_in in ("0.3", "1.0", ""):
        assert choose_shared(created_in) is v03


@pytest.mark.parametrize(
    ("declared", "version"),
    [("1.0", "1.0"), ("1", "1.0"), ("1.7.2", "1.0"), ("0.3.0", "0.3"), ("0.2.5", "0.3"),
     ("0.1", "0.1"), ("0.9", "0.1"), (None, "0.3"), ("", "0.3"), ("2.0", None), ("x", None)],
)  # fmt: skip
def test_card_selects_the_version(declared: Any, version: str | None) -> None:
    assert version_from_card(declared) == version


def test_missing_version_has_the_traits_of_1_0() -> None:
    assert find_traits("") is find_traits("1.0") is v10.TRAITS
    assert find_traits("0.1").client_names_task


def test_version_1_0_may_need_to_be_explicit() -> None:
    with pytest.raises(A2aError) as caught:
        choose(None, "SendMessage", PLAIN, True)
    assert caught.value.reason == "VERSION_NOT_SUPPORTED"
    assert choose(None, "message/send", KINDED, True) is v03


def test_every_operation_has_a_method_where_the_dialect_has_it() -> None:
    assert set(v10.METHODS.values()) == set(OPS)
    assert set(OPS) - set(v03.METHODS.values()) == {"ListTasks"}
    assert {"tasks/get", "tasks/cancel", "tasks/resubscribe"} == SHARED
    assert BY_VERSION["0.2"] is BY_VERSION["0.3"]
    for version in ("0.1", "0.3", "1.0"):
        assert version == BY_VERSION[version].VERSION


@pytest.mark.parametrize(
    ("http", "path", "found"),
    [
        ("POST", "/message:send", ("SendMessage", {})),
        ("POST", "/message:stream", ("SendStreamingMessage", {})),
        ("GET", "/tasks", ("ListTasks", {})),
        ("GET", "/tasks/a", ("GetTask", {"id": "a"})),
        ("GET", "/tasks/a%2Fb", ("GetTask", {"id": "a/b"})),
        ("GET", "/tasks/a:b", ("GetTask", {"id": "a:b"})),
        ("POST", "/tasks/a:b:cancel", ("CancelTask", {"id": "a:b"})),
        ("POST", "/tasks/a:subscribe", ("SubscribeToTask", {"id": "a"})),
        ("GET", "/tasks/a:subscribe", ("SubscribeToTask", {"id": "a"})),
        (
            "POST",
            "/tasks/a/pushNotificationConfigs",
            ("CreateTaskPushNotificationConfig", {"taskId": "a"}),
        ),
        (
            "GET",
            "/tasks/a/pushNotificationConfigs",
            ("ListTaskPushNotificationConfigs", {"taskId": "a"}),
        ),
        (
            "GET",
            "/tasks/a/pushNotificationConfigs/b",
            ("GetTaskPushNotificationConfig", {"taskId": "a", "id": "b"}),
        ),
        (
            "DELETE",
            "/tasks/a/pushNotificationConfigs/b",
            ("DeleteTaskPushNotificationConfig", {"taskId": "a", "id": "b"}),
        ),
        ("GET", "/extendedAgentCard", ("GetExtendedAgentCard", {})),
        ("GET", "/message:send", None),
        ("GET", "/tasks/", None),
        ("GET", "/tasks/a/b", None),
        ("POST", "/tasks/a", None),
        ("GET", "/message.send", None),
        ("GET", "/", None),
    ],
)
@pytest.mark.promise("J3")
def test_path_selects_the_operation(http: str, path: str, found: Any) -> None:
    assert v10.ROUTES.find(http, path) == found
    if "extended" not in path:
        assert v03.ROUTES.find(http, f"/v1{path}") == found


def test_path_lists_its_allowed_methods() -> None:
    assert v10.ROUTES.list_methods("/tasks/x:subscribe") == ("GET", "POST")
    assert v10.ROUTES.list_methods("/message:send") == ("POST",)
    assert v10.ROUTES.list_methods("/nothing") == ()
