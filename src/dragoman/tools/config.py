"""`[tools]`: the built-in tools."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct


class ClientGrants(Struct, frozen=True, kw_only=True):
    workspace: Annotated[
        str,
        Meta(
            min_length=1,
            description="The folder of the files that clients share, relative to the home.",
        ),
    ] = "workspaces/clients"
    network: Annotated[
        list[str], Meta(max_length=1_000, description="Hosts that web_fetch may reach for clients.")
    ] = []
    shell: Annotated[
        list[str],
        Meta(max_length=1_000, description="Commands that shell_exec may run for clients."),
    ] = []
    agents: Annotated[
        list[str], Meta(max_length=1_000, description="Agents that clients may send messages to.")
    ] = []
    memory_read: Annotated[
        list[str], Meta(max_length=1_000, description="Keys that clients may recall.")
    ] = []
    memory_write: Annotated[
        list[str], Meta(max_length=1_000, description="Keys that clients may store.")
    ] = []


class ToolSettings(Struct, frozen=True, kw_only=True):
    clients: Annotated[
        list[str],
        Meta(
            max_length=1_000,
            description="Globs of the built-in tools that principals other than agents may list "
            "and call, where a policy permits it.",
        ),
    ] = []
    client_grants: ClientGrants = ClientGrants()
    search_url: Annotated[
        str | None,
        Meta(
            description="The search page of a SearXNG instance that serves JSON; without one there "
            "is no web_search.",
        ),
    ] = None
    search_headers: Annotated[
        dict[str, str],
        Meta(
            max_length=50,
            description="Headers to send to search_url alone; ${NAME} and ${REFERENCE} stand for "
            "secrets.",
        ),
    ] = {}
    allow_private: Annotated[
        bool, Meta(description="Whether web_fetch and a2a_send may reach private addresses.")
    ] = False
    fetch_secs: Annotated[
        float, Meta(gt=0, le=600, description="Seconds that a fetched page may take in all.")
    ] = 30
    fetch_megabytes: Annotated[
        float, Meta(gt=0, le=10, description="Megabytes that a fetched page may have.")
    ] = 5
    workspace_megabytes: Annotated[
        float, Meta(gt=0, le=1_000_000, description="Megabytes that a workspace may have.")
    ] = 100
    workspace_files: Annotated[
        int, Meta(ge=1, le=1_000_000, description="Files and folders that a workspace may have.")
    ] = 10_000
    file_megabytes: Annotated[
        float, Meta(gt=0, le=7, description="Megabytes of one file that a tool reads or writes.")
    ] = 5
    command_secs: Annotated[
        float,
        Meta(gt=0, le=3_600, description="Seconds that a command may take."),
    ] = 50
    command_sandbox: Annotated[
        Literal["strict", "net", "off"],
        Meta(
            description="The sandbox of commands: without network (strict), with it (net), or none "
            "(off). Without bubblewrap, commands run only with net or off, and have none."
        ),
    ] = "strict"
    command_kilobytes: Annotated[
        float,
        Meta(gt=0, le=10_000, description="Kilobytes of a command's output, each of two streams."),
    ] = 100
    memory_keys: Annotated[
        int, Meta(ge=1, le=100_000, description="Keys that one agent may store.")
    ] = 1_000
    memory_megabytes: Annotated[
        float, Meta(gt=0, le=100, description="Megabytes that one agent may store.")
    ] = 5
    lease_secs: Annotated[
        float,
        Meta(gt=0, le=86_400, description="Seconds for which a claimed task belongs to its agent."),
    ] = 600
    schedules: Annotated[
        int, Meta(ge=0, le=10_000, description="Schedules that one agent may have.")
    ] = 50
