"""`/api/prompts` and `/api/resources`: lists and uses prompts and resources.

Getting a prompt and reading a resource are calls: they pass through `Hub.call` like tools.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dragoman.core.call import Result
from dragoman.core.errors import InvalidInput, NeedsInput
from dragoman.core.hub import CallOptions, Hub
from dragoman.core.principal import Principal
from dragoman.core.resource_uris import MAX_URI, TOO_LONG
from dragoman.core.tool import PROMPT, RESOURCE, TEMPLATE, Tool
from dragoman.core.tool_filter import EVERYTHING
from dragoman.core.trace import parse_trace
from dragoman.web.api import CALL_ERRORS, ApiRequest, ApiResponse, build_response, parse_object
from dragoman.web.openapi import route

SLICE = 100
"""Entries authorized per loop iteration."""
_IDENTITY = {PROMPT: "name", RESOURCE: "uri", TEMPLATE: "uriTemplate"}
_SHOWN = {
    PROMPT: ("title", "arguments"),
    RESOURCE: ("title", "mimeType", "size"),
    TEMPLATE: ("title", "mimeType"),
}


@dataclass(frozen=True, slots=True)
class PromptsAndResourcesApi:
    _hub: Hub
    _features: Mapping[str, Any]

    @route("GET /api/prompts", "All prompts")
    async def _list_prompts(self, request: ApiRequest) -> ApiResponse:
        found = await self._list(request.caller, PROMPT)
        return build_response({"prompts": found, "total": len(found)})

    @route("GET /api/resources", "All resources and resource templates")
    async def _list_resources(self, request: ApiRequest) -> ApiResponse:
        resources = await self._list(request.caller, RESOURCE)
        templates = await self._list(request.caller, TEMPLATE)
        return build_response({"resources": resources, "templates": templates})

    async def _list(self, caller: Principal, kind: str) -> list[dict[str, Any]]:
        found = []
        for number, tool in enumerate(self._hub.catalogs[kind].list_tools()):
            if number % SLICE == SLICE - 1:
                await asyncio.sleep(0)
            if self._hub.authorizer.can_see(caller, tool, "api"):
                found.append(self._describe(tool, kind))
        return found

    def _describe(self, tool: Tool, kind: str) -> dict[str, Any]:
        definition = tool.definition
        shown: dict[str, Any] = {"name": definition.get("name") or tool.remote_name}
        shown[_IDENTITY[kind]] = self._hub.catalogs[kind].listed_name(tool)
        shown |= {"id": tool.name, "server": tool.target.name}
        shown["description"] = tool.description or definition.get("description") or ""
        return shown | {key: definition[key] for key in _SHOWN[kind] if key in definition}

    @route(
        "POST /api/prompts/{name}/get",
        "Get a prompt: {arguments: {…}}",
        CALL_ERRORS,
        "PromptArguments",
        calls=True,
    )
    async def _get_prompt(self, request: ApiRequest) -> ApiResponse:
        given = parse_object(request)
        arguments = given.get("arguments", {})
        if given.keys() - {"arguments"} or not isinstance(arguments, dict):
            raise InvalidInput('the body must be {"arguments": {…}}')
        result = await self._call(request, request.names[0], arguments, PROMPT)
        extra = dict(result.extra)
        roles = extra.pop("roles", ())
        messages = [
            {"role": roles[number] if number < len(roles) else "user", "content": block}
            for number, block in enumerate(result.content)
        ]
        return build_response({**extra, "messages": messages})

    @route(
        "POST /api/resources/read", "Read a resource: {uri}", CALL_ERRORS, "ResourceUri", calls=True
    )
    async def _read_resource(self, request: ApiRequest) -> ApiResponse:
        given = parse_object(request)
        uri = given.get("uri")
        if given.keys() != {"uri"} or not isinstance(uri, str):
            raise InvalidInput('the body must be {"uri": "…"}')
        if len(uri) > MAX_URI:
            raise InvalidInput(TOO_LONG)
        result = await self._call(request, uri, {}, RESOURCE)
        return build_response(
            {**result.extra, "contents": [_build_contents(block, uri) for block in result.content]}
        )

    async def _call(
        self, request: ApiRequest, name: str, arguments: Mapping[str, Any], kind: str
    ) -> Result:
        options = CallOptions(
            kind=kind,
            door="api",
            view=EVERYTHING,
            trace_context=parse_trace(request.fields),
            features=self._features,
        )
        _, result = await self._hub.call(request.caller, name, arguments, options)
        if result.questions is not None:
            raise NeedsInput(f'"{name[:200]}" asks a question, which cannot be answered here')
        return result


def _build_contents(block: Mapping[str, Any], uri: str) -> Any:
    resource = block.get("resource")
    if isinstance(resource, dict):
        return resource
    return {"uri": uri, "mimeType": "text/plain", "text": str(block.get("text", ""))}
