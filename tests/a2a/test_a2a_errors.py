"""The A2A form of each error."""

from __future__ import annotations

import pytest

from dragoman.a2a.protocol import errors
from dragoman.a2a.protocol.dialects import v01, v03, v10
from dragoman.a2a.protocol.errors import (
    ERROR_CODES,
    REASONS_BY_ERROR,
    A2aError,
    error_from_hub,
    invalid,
)
from dragoman.core.errors import (
    Declined,
    Denied,
    InsufficientScope,
    NotFound,
    StorageFailed,
    Unreachable,
    find_row,
    list_leaves,
)

SPECIFIED = {
    # 1.0.1, section 5.4
    "TASK_NOT_FOUND": (-32001, 404, "NOT_FOUND"),
    "TASK_NOT_CANCELABLE": (-32002, 400, "FAILED_PRECONDITION"),
    "PUSH_NOTIFICATION_NOT_SUPPORTED": (-32003, 400, "FAILED_PRECONDITION"),
    "UNSUPPORTED_OPERATION": (-32004, 400, "FAILED_PRECONDITION"),
    "CONTENT_TYPE_NOT_SUPPORTED": (-32005, 400, "INVALID_ARGUMENT"),
    "INVALID_AGENT_RESPONSE": (-32006, 500, "INTERNAL"),
    "EXTENDED_AGENT_CARD_NOT_CONFIGURED": (-32007, 400, "FAILED_PRECONDITION"),
    "EXTENSION_SUPPORT_REQUIRED": (-32008, 400, "FAILED_PRECONDITION"),
    "VERSION_NOT_SUPPORTED": (-32009, 400, "FAILED_PRECONDITION"),
}


@pytest.mark.promise("J3")
def test_error_table_matches_the_specification() -> None:
    for reason, row in SPECIFIED.items():
        assert tuple(ERROR_CODES[reason]) == row
    others = {reason: row.code for reason, row in ERROR_CODES.items() if reason not in SPECIFIED}
    assert not any(-32099 <= code <= -32001 for code in others.values()), "those are A2A's own"


def test_every_reason_has_a_constant_of_its_name() -> None:
    for reason in ERROR_CODES:
        assert getattr(errors, reason) == reason


def test_every_hub_error_has_an_a2a_row() -> None:
    assert all(find_row(REASONS_BY_ERROR, leaf) in ERROR_CODES for leaf in list_leaves())
    assert set(REASONS_BY_ERROR.values()) <= set(ERROR_CODES)


def test_hub_error_keeps_its_message_and_trace() -> None:
    error = Denied("no policy permits it")
    error.trace = "4f2a" * 8
    seen = error_from_hub(error)
    assert seen.reason == "PERMISSION_DENIED"
    assert seen.message == "no policy permits it (trace 4f2a4f2a)"
    assert seen.metadata == {"kind": "Denied", "trace": "4f2a" * 8}


def test_possibly_executed_call_is_not_unavailable() -> None:
    """Clients send again what is unavailable."""
    assert error_from_hub(Unreachable("gone", sent=True)).reason == "INTERNAL"
    assert error_from_hub(Unreachable("gone", sent=False)).reason == "UNAVAILABLE"
    assert error_from_hub(StorageFailed("the database is away")).reason == "UNAVAILABLE"


def test_a_missing_scope_is_named_in_the_details_of_every_binding() -> None:
    seen = error_from_hub(InsufficientScope("the key lacks it", "call"))
    assert seen.codes == (-32000, 403, "PERMISSION_DENIED")
    assert (seen.missing_scope, seen.metadata["scope"]) == ("call", "call")


def test_error_subclass_uses_its_parents_row() -> None:
    class Special(NotFound):
        pass

    seen = error_from_hub(Special("no such task"))
    assert (seen.reason, seen.metadata["kind"]) == ("TASK_NOT_FOUND", "NotFound")
    assert error_from_hub(Declined("I would rather not")).reason == "UNSUPPORTED_OPERATION"


@pytest.mark.promise("J3")
def test_a_json_rpc_error_of_1_0_has_the_details_of_google_rpc() -> None:
    error = A2aError("TASK_NOT_FOUND", "no such task", metadata={"taskId": "t"})
    assert v10.render_error(error) == {
        "code": -32001,
        "message": "no such task",
        "data": [
            {
                "@type": "type.googleapis.com/google.rpc.ErrorInfo",
                "reason": "TASK_NOT_FOUND",
                "domain": "a2a-protocol.org",
                "metadata": {"taskId": "t"},
            }
        ],
    }


def test_invalid_parameters_are_named_in_a_bad_request() -> None:
    out = v10.render_error(invalid("message.parts", "must have at least one part"))
    assert out["code"] == -32602
    assert out["message"] == '"message.parts" must have at least one part'
    assert out["data"][1] == {
        "@type": "type.googleapis.com/google.rpc.BadRequest",
        "fieldViolations": [
            {"field": "message.parts", "description": "must have at least one part"}
        ],
    }


@pytest.mark.promise("J3")
def test_an_http_error_of_1_0_is_a_status_of_google_rpc() -> None:
    status, body = v10.render_rest_error(A2aError("TASK_NOT_CANCELABLE", "it is done"))
    assert status == 400
    assert body["error"]["code"] == 400
    assert body["error"]["status"] == "FAILED_PRECONDITION"
    assert body["error"]["details"][0]["reason"] == "TASK_NOT_CANCELABLE"
    status, body = v10.render_rest_error(A2aError("METHOD_NOT_FOUND", "no such path"))
    assert (status, body["error"]["status"]) == (404, "NOT_FOUND")


@pytest.mark.parametrize("reason", ERROR_CODES)
def test_older_dialects_get_only_codes_they_know(reason: str) -> None:
    error = A2aError(reason, "no")
    known = {-32700, -32600, -32601, -32602, -32603, -32000, -32001, -32002, -32003, -32004}
    assert v01.render_error(error)["code"] in known
    assert v03.render_error(error)["code"] in known | {-32005, -32006, -32007}
    assert v01.render_error(error)["data"]["reason"] == reason


@pytest.mark.parametrize("dialect", [v01, v03, v10])
@pytest.mark.parametrize("reason", ERROR_CODES)
def test_error_round_trips_in_each_dialect(dialect: object, reason: str) -> None:
    error = A2aError(reason, "because", violations=[("a.b", "is wrong")], metadata={"taskId": "7"})
    back = dialect.parse_error(dialect.render_error(error))  # type: ignore[attr-defined]
    assert (back.reason, back.message) == (reason, "because")
    assert back.violations == [("a.b", "is wrong")]
    assert back.metadata == {"taskId": "7"}


@pytest.mark.parametrize("dialect", [v03, v10])
@pytest.mark.parametrize("reason", ERROR_CODES)
def test_an_http_error_comes_back_with_its_reason(dialect: object, reason: str) -> None:
    error = A2aError(reason, "because")
    back = dialect.parse_rest_error(*dialect.render_rest_error(error))  # type: ignore[attr-defined]
    assert (back.reason, back.message) == (reason, "because")


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (404, {"error": "io.a2a.spec.TaskNotFoundError", "message": "gone"}, "TASK_NOT_FOUND"),
        (409, {"message": "it is done"}, "TASK_NOT_CANCELABLE"),
        (401, None, "UNAUTHENTICATED"),
        (403, "Forbidden", "PERMISSION_DENIED"),
        (500, {"detail": "boom"}, "INTERNAL"),
        (503, ["?"], "UNAVAILABLE"),
        (400, {"error": {"code": 400, "details": "?", "message": 7}}, "INVALID_PARAMS"),
    ],
)
def test_foreign_http_errors_are_parsed(status: int, body: object, reason: str) -> None:
    error = v03.parse_rest_error(status, body)
    assert error.reason == reason
    assert error.message


@pytest.mark.parametrize("error", [None, "boom", [], {}, {"code": "x"}, {"code": 7, "data": [1]}])
def test_malformed_error_is_an_internal_error(error: object) -> None:
    assert v10.parse_error(error).reason == "INTERNAL"
    assert v10.parse_error(error).message


def test_remote_error_message_is_truncated() -> None:
    assert len(v10.parse_error({"code": -32603, "message": "x" * 100_000}).message) <= 2000
