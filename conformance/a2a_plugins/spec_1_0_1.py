"""A pytest plugin that the kit's branch 1.0-dev is run with: the few things that 1.0.1 changed.

The branch is pinned to 1.0.0. Here its error table gets the rows of 1.0.1 (section 5.4), a reply
over HTTP+JSON must be application/a2a+json (section 11.1), and CORE-SEND-003, whose text says that
an error must come but whose table forgot which, gets that error. Nothing else is touched, and the
checks stay the kit's. The kit's modules are found because pytest is run in its folder.
"""

import httpx
from tck.requirements import base, registry

base.TASK_NOT_CANCELABLE_ERROR.http_status = 400
base.CONTENT_TYPE_NOT_SUPPORTED_ERROR.http_status = 400
base.INVALID_AGENT_RESPONSE_ERROR.http_status = 500
for error in (
    base.PUSH_NOTIFICATION_NOT_SUPPORTED_ERROR,
    base.UNSUPPORTED_OPERATION_ERROR,
    base.VERSION_NOT_SUPPORTED_ERROR,
):
    error.grpc_status = "FAILED_PRECONDITION"

forgotten = registry.get_requirement_by_id("CORE-SEND-003")
forgotten.expected_error = base.CONTENT_TYPE_NOT_SUPPORTED_ERROR

ROUTES = ("/message:", "/tasks", "/extendedAgentCard")
OLD, NEW, WRONG = "application/json", "application/a2a+json", "application/of-1.0.0"

make_response = httpx.Client.send


def send(client: httpx.Client, request: httpx.Request, **options: object) -> httpx.Response:
    """The kit looks for the old media type: it is shown that where the new one came, only there."""
    response = make_response(client, request, **options)  # type: ignore[arg-type]
    came = response.headers.get("content-type", "").partition(";")[0].strip()
    if any(route in request.url.path for route in ROUTES) and came in (OLD, NEW):
        response.headers["content-type"] = OLD if came == NEW else WRONG
    return response


httpx.Client.send = send  # type: ignore[method-assign]
