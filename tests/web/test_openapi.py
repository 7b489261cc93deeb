"""The OpenAPI document: well formed, and with exactly the existing routes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, cast

import jsonschema
import pytest
from tests.permissive_hub import build_permissive_hub

from dragoman.core.bus import Bus
from dragoman.core.catalog import Catalog, admit_all
from dragoman.web.api import Api
from dragoman.web.api_agents import AgentsApi
from dragoman.web.api_dispatches import DispatchesApi
from dragoman.web.api_hub import HubApi
from dragoman.web.api_offers import PromptsAndResourcesApi
from dragoman.web.api_pins import PinsApi
from dragoman.web.api_policies import PoliciesApi
from dragoman.web.api_records import RecordsApi
from dragoman.web.api_servers import ServersApi
from dragoman.web.openapi import build_document as described

MOUNTED = {("GET", "/api/events"), ("GET", "/api/runs/{name}/events")}
"""What is served beside the API's own routes."""


def api() -> Api:
    hub, nothing = build_permissive_hub(Catalog(review=admit_all), Bus(), []), cast(Any, None)
    parts: list[Any] = [part(nothing) for part in (PinsApi, PoliciesApi)]
    parts += [ServersApi(nothing, nothing, nothing), RecordsApi(hub, nothing), HubApi(nothing)]
    parts += [DispatchesApi(hub, nothing, nothing, {}), PromptsAndResourcesApi(hub, nothing)]
    parts.append(AgentsApi(hub, nothing, nothing))
    return Api(hub, nothing, parts=parts)


def document() -> dict[str, Any]:
    return described(api().operations)


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "$ref":
                yield inner
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def resolved(reference: str) -> Any:
    found: Any = document()
    for step in reference.removeprefix("#/").split("/"):
        found = found[step]
    return found


def test_openapi_document_and_routes_agree() -> None:
    routes = {
        (operation.method, re.sub(r"\(.*?\)", "{name}", pattern.pattern).replace("\\", ""))
        for operation, pattern, _ in api()._routes
    }
    there = {
        (method.upper(), path) for path, item in document()["paths"].items() for method in item
    }
    assert routes | MOUNTED == there


def test_the_document_is_an_openapi_document() -> None:
    whole = document()
    json.dumps(whole)
    assert whole["openapi"] == "3.1.0"
    assert {"title", "version"} <= set(whole["info"])
    assert all(reference.startswith("#/components/schemas/") for reference in references(whole))
    for reference in references(whole):
        resolved(reference)
    for schema in whole["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)
    names = {name for requirement in whole["security"] for name in requirement}
    assert names <= set(whole["components"]["securitySchemes"])


@pytest.mark.parametrize("path", document()["paths"])
def test_each_operation_documents_its_input_and_output(path: str) -> None:
    for method, operation in document()["paths"][path].items():
        assert method in {"get", "post", "patch", "delete"}
        assert operation["summary"]
        declared = {p["name"] for p in operation.get("parameters", []) if p["in"] == "path"}
        assert declared == set(re.findall(r"\{(\w+)\}", path))
        for parameter in operation.get("parameters", []):
            assert parameter["schema"] and parameter["required"] in (
                True,
                parameter["in"] == "path",
            )
        assert ("requestBody" in operation) <= (method in {"post", "patch"})
        assert "200" in operation["responses"]
        for status, response in operation["responses"].items():
            assert re.fullmatch(r"[1-5]\d\d", status)
            assert response["description"]
            assert all("schema" in media for media in response["content"].values())
