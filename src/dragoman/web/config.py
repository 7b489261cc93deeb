"""`[server]`: where the hub listens, and by which names it may be called."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class ServerSettings(Struct, frozen=True, kw_only=True):
    host: Annotated[
        str,
        Meta(
            min_length=1,
            description="Address to listen on. Anything but loopback needs an API key.",
        ),
    ] = "127.0.0.1"
    port: Annotated[
        int, Meta(ge=0, le=65_535, description="Port to listen on; 0 takes a free one.")
    ] = 50_051
    workers: Annotated[
        int,
        Meta(
            ge=1,
            le=256,
            description="Processes that share the port, to use several cores; more than one needs "
            "[store] url.",
        ),
    ] = 1
    public_url: Annotated[
        str | None, Meta(description="The URL by which clients reach the hub, where that differs.")
    ] = None
    allowed_hosts: Annotated[
        list[str], Meta(description="Further names that may stand in the Host header of a request.")
    ] = []
    allowed_origins: Annotated[
        list[str],
        Meta(description="Origins of web pages that may call the hub, e.g. https://app.example."),
    ] = []
    slow_handler_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=60_000,
            description="A function of the hub that keeps all others waiting for longer is named "
            "in the metrics and the log; 0 watches nothing.",
        ),
    ] = 100
