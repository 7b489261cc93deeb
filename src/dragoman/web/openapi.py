"""The operations of the API, and the OpenAPI document that describes them."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dragoman import __version__
from dragoman.core.rate_limiter import REQUEST
from dragoman.core.scopes import CALL, LIST
from dragoman.web.http.connection_limits import BODY_BYTES
from dragoman.web.openapi_schemas import SCHEMAS, TEXT, Schema

Handler = TypeVar("Handler", bound=Callable[..., Awaitable[Any]])

COMMON_ERRORS = (400, 401, 429, 503)
"""An invalid query, no key, no budget; a store that fails, too many large requests."""
BODY_ERRORS = (413, 415)
PUBLIC = ("/healthz", "/readyz")
"""What needs no key."""
NO_PARAMETERS: Mapping[str, Schema] = {}


@dataclass(frozen=True, slots=True)
class Operation:
    method: str
    path: str
    """`{name}` stands for one segment."""
    summary: str
    errors: tuple[int, ...] = ()
    body: str | None = None
    """The schema of the body; None if there is none."""
    answer: str | None = "Object"
    """The schema of the response; None for plain text."""
    right: str = ""
    """What the API requires of the principal (`core.scopes`): a scope, and for a part of the
    administration a policy that permits it. Empty: nothing but a principal, or not even that."""
    calls: bool = False
    """Whether it makes a call, which the pipeline charges."""
    query: Mapping[str, Schema] = field(default_factory=dict)
    """The schemas of the parameters in its query."""
    needs: tuple[str, ...] = ()
    """Parameters in its query that it requires."""
    media: tuple[str, ...] = ()
    """Further media types of its response."""
    charge: str = REQUEST
    """The cost of a request, unless it makes a call."""
    body_bytes: int = BODY_BYTES
    """The largest body."""

    @property
    def pattern(self) -> str:
        return re.escape(self.path).replace(r"\{name\}", "([^/]+)")


EVENTS = Operation(
    "GET",
    "/api/events",
    "Live events as server-sent events",
    (403,),
    answer=None,
    right=LIST,
    query={
        "phase": TEXT,
        "verb": TEXT,
        "agent": TEXT,
        "outcome": {"enum": ["completed", "failed", "parked"]},
        "trace": TEXT,
        "run": TEXT,
        "args": {"enum": ["0", "1"]},
    },
    media=("text/event-stream",),
)
RUN_EVENTS = Operation(
    "GET",
    "/api/runs/{name}/events",
    "Live events of one run of a workflow as server-sent events",
    (403, 404),
    answer=None,
    right=LIST,
    media=("text/event-stream",),
)
"""Both are served by a stream that is mounted beside the API."""


def route(
    where: str,
    summary: str,
    errors: tuple[int, ...] = (),
    body: str | None = "Object",
    answer: str | None = "Object",
    right: str | None = None,
    calls: bool = False,
    query: Mapping[str, Schema] = NO_PARAMETERS,
    needs: tuple[str, ...] = (),
    media: tuple[str, ...] = (),
    charge: str = REQUEST,
    body_bytes: int = BODY_BYTES,
) -> Callable[[Handler], Handler]:
    """Marks a method as the handler of `where`, a method and a path. Only POST and PATCH have a
    `body`. `right` is what it needs; by default `list` if it only reads, otherwise `call`."""
    method, path = where.split(" ")
    schema = body if method in ("POST", "PATCH") else None
    if right is None:
        right = LIST if method == "GET" else CALL
    if right and 403 not in errors:
        errors = (*errors, 403)
    operation = Operation(
        method,
        path,
        summary,
        errors,
        schema,
        answer,
        right,
        calls,
        query,
        needs,
        media,
        charge,
        body_bytes,
    )

    def mark(handler: Handler) -> Handler:
        vars(handler)["operation"] = operation
        return handler

    return mark


def admin_route(
    right: str,
    where: str,
    summary: str,
    errors: tuple[int, ...] = (),
    body: str | None = "Object",
    query: Mapping[str, Schema] = NO_PARAMETERS,
    needs: tuple[str, ...] = (),
    charge: str = REQUEST,
    body_bytes: int = BODY_BYTES,
) -> Callable[[Handler], Handler]:
    """Like `route`, for a handler that only administrators with that right reach: the API refuses
    others."""
    return route(
        where,
        summary,
        errors,
        body,
        right=right,
        query=query,
        needs=needs,
        charge=charge,
        body_bytes=body_bytes,
    )


def list_routes(part: object) -> Iterator[tuple[Operation, Callable[..., Awaitable[Any]]]]:
    """Lists the operations whose handlers are methods of `part`."""
    for name, member in vars(type(part)).items():
        operation = getattr(member, "operation", None)
        if isinstance(operation, Operation):
            yield operation, getattr(part, name)


def build_document(operations: Iterable[Operation]) -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for operation in (*operations, EVENTS, RUN_EVENTS):
        paths.setdefault(operation.path, {})[operation.method.lower()] = _describe(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Dragoman",
            "version": __version__,
            "description": "An agent interoperability hub. MCP clients use POST /mcp. While it has "
            "no keys, it serves programs of its own user without one.",
        },
        "security": [{"key": []}],
        "components": {
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "schemas": dict(SCHEMAS),
        },
        "paths": paths,
    }


def _describe(operation: Operation) -> dict[str, Any]:
    is_public = operation.path in PUBLIC
    errors = {*operation.errors, *((400,) if is_public else COMMON_ERRORS)}
    if operation.body is not None:
        errors |= {*BODY_ERRORS}
    failed = _build_content("Error", "It could not be done")
    done = _build_content(operation.answer, "As asked", operation.media)
    responses = {"200": done, **{str(one): failed for one in sorted(errors)}}
    described: dict[str, Any] = {"summary": operation.summary, "responses": responses}
    if is_public:
        described["security"] = []
    elif operation.right:  # OpenAPI 3.1: for other types than OAuth, names of roles
        described["security"] = [{"key": [operation.right]}]
    parameters = [
        {"name": name, "in": "query", "required": name in operation.needs, "schema": schema}
        for name, schema in operation.query.items()
    ]
    if "{name}" in operation.path:
        parameters.append({"name": "name", "in": "path", "required": True, "schema": TEXT})
    if parameters:
        described["parameters"] = parameters
    if operation.body is not None:
        described["requestBody"] = {"content": _build_content(operation.body)["content"]}
    return described


def _build_content(
    schema: str | None, description: str = "", media: tuple[str, ...] = ()
) -> dict[str, Any]:
    plain: Schema = {"schema": TEXT}
    if schema is None:
        content = dict.fromkeys(media or ("text/plain",), plain)
    else:
        reference = {"schema": {"$ref": f"#/components/schemas/{schema}"}}
        content = {"application/json": reference, **dict.fromkeys(media, plain)}
    return {"description": description, "content": content}
