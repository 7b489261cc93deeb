"""What the hubs of a cluster tell each other about themselves, for people who operate them.

A hub asks the others over the internal connection, which shows at the same time that they can be
reached. Settings are compared by MACs: no hub learns a value that it does not have.
"""

from __future__ import annotations

import asyncio
import hmac
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from dragoman import __version__
from dragoman.config import Config
from dragoman.core.background import Work
from dragoman.core.errors import ConfigError, HubError
from dragoman.web.forwarding import Cluster, ForwardedRequest, HubAddress, OpenClient, send_to_hub
from dragoman.wire.http import JSON_HEADERS, HttpRequest
from dragoman.wire.json import Malformed, decode, encode

PATH = "/hub-report"
SECONDS = 2.0
"""How long a hub may take to answer."""
MAX_BYTES = 64 * 1024
CLOCK_SECONDS = 5.0
"""Clocks that differ by more are a problem."""
OWN_SECTIONS = frozenset({"server", "cluster", "store", "log", "otel"})
"""Where hubs of one cluster may differ."""


@dataclass(frozen=True, slots=True)
class HubReport:
    at: float
    """The time by the hub's clock."""
    audit_behind: int
    """Entries of its audit log that the database does not have."""
    audit_behind_secs: float
    problems: list[str]
    version: str
    settings: dict[str, str]
    """A MAC of each setting that all hubs should have alike."""


FindState = Callable[[], tuple[int, float, list[str]]]
"""Finds how many entries of the audit log are not copied, for how many seconds, and problems."""


class ClusterReports:
    def __init__(
        self,
        cluster: Cluster,
        open_client: OpenClient,
        key: bytes,
        find_config: Callable[[], Config],
    ) -> None:
        self._cluster = cluster
        self._open_client = open_client
        self._key = key
        self._find_config = find_config

    def serve(self, find_state: FindState, request: HttpRequest, hub: str) -> Work[None] | None:
        """Answers another hub."""
        request.reply(200, JSON_HEADERS, encode(asdict(self.build(find_state))))
        return None

    def build(self, find_state: FindState) -> HubReport:
        behind, seconds, problems = find_state()
        lag = behind, round(seconds, 3)
        return HubReport(time.time(), *lag, problems, __version__, self._seal_settings())

    async def describe_all(self, find_state: FindState) -> dict[str, dict[str, Any]]:
        """Describes each hub that lives, by its id."""
        own = self.build(find_state)
        others = self._cluster.list_others()
        found = await asyncio.gather(*(self._describe(one, own) for one in others))
        described = {one.id: text for one, text in zip(others, found, strict=True)}
        return {self._cluster.mark: _describe_state(own, 0.0, own.problems), **described}

    async def _describe(self, hub: HubAddress, own: HubReport) -> dict[str, Any]:
        began = time.time()
        try:
            async with asyncio.timeout(SECONDS):
                report = await self._ask(hub)
        except TimeoutError:
            return {"problems": [f"it did not answer this hub within {SECONDS:g} s"]}
        except (HubError, Malformed, TypeError, AttributeError, OSError) as error:
            return {"problems": [f"this hub cannot reach it: {_explain(error)}"]}
        if report is None:
            return {"problems": ["it did not accept a request of this hub"]}
        offset = report.at - (began + time.time()) / 2
        problems = list(report.problems)
        if abs(offset) > CLOCK_SECONDS:
            problems.append(f"its clock differs from the one of this hub by {offset:+.0f} s")
        different = _list_differences(own.settings, report.settings)
        if different and report.version == own.version:  # which have the same settings
            problems.append(f"other settings than at this hub: {', '.join(different)}")
        return _describe_state(report, offset, problems)

    async def refuse_other_secret(self) -> None:
        """Raises `ConfigError` if a hub on the same database has another secret: neither could open
        what the other has sealed, and requests could not be forwarded."""
        others = self._cluster.list_others()
        found = await asyncio.gather(*map(self._has_other_secret, others))
        for hub, is_other in zip(others, found, strict=True):
            if is_other:
                raise ConfigError(
                    f"the hub at {hub.address}, which uses the same database, has another "
                    "[cluster] secret; it must be the same on all hubs"
                )

    async def _has_other_secret(self, hub: HubAddress) -> bool:
        """Whether it is known to have one; it may not be reachable for other reasons."""
        try:
            async with asyncio.timeout(SECONDS):
                await self._ask(hub)
        except HubError as error:
            return _is_other_secret(error)
        except (TimeoutError, OSError, Malformed, TypeError, AttributeError):
            return False
        return False

    async def _ask(self, hub: HubAddress) -> HubReport | None:
        packed = ForwardedRequest("GET", PATH.encode(), [], None, b"")
        opened = self._open_client(hub.address)
        reply = await send_to_hub(self._cluster.mark, hub.id, opened, packed, SECONDS)
        if reply is None:
            return None
        found = decode(await reply.body.read(MAX_BYTES))
        known = {one.name for one in fields(HubReport)}  # a later version may say more
        return HubReport(**{name: value for name, value in found.items() if name in known})

    def _seal_settings(self) -> dict[str, str]:
        config = self._find_config()
        values = {
            name: getattr(config, name)
            for name in config.__struct_fields__
            if name not in OWN_SECTIONS
        }
        values["server.public_url"] = config.server.public_url
        values["cluster.lease_secs"] = config.cluster.lease_secs
        return {name: self._seal(name, value) for name, value in values.items()}

    def _seal(self, name: str, value: object) -> str:
        # Structs are rendered with all of their values.
        return hmac.digest(self._key, f"settings {name} {value!r}".encode(), "sha256").hex()[:16]


def _is_other_secret(error: BaseException) -> bool:
    return isinstance(error.__cause__, ssl.SSLCertVerificationError)


def _explain(error: BaseException) -> str:
    return "it has another [cluster] secret" if _is_other_secret(error) else str(error)


def _describe_state(report: HubReport, offset: float, problems: list[str]) -> dict[str, Any]:
    return {
        "audit_behind": report.audit_behind,
        "audit_behind_secs": report.audit_behind_secs,
        "clock_offset_secs": round(offset, 3),
        "problems": problems,
    }


def _list_differences(ours: Mapping[str, str], theirs: Mapping[str, str]) -> list[str]:
    """Lists the settings that both versions know and that differ."""
    return sorted(name for name in ours.keys() & theirs.keys() if ours[name] != theirs[name])
