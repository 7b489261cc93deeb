"""The logins as the API and the command line use them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dragoman.a2a.remote.registered_agents import RegisteredAgents
from dragoman.core.errors import NotFound, Unreachable
from dragoman.core.holders import SHARED, find_holder_of, render_holder
from dragoman.core.hub import Hub
from dragoman.core.principal import Principal
from dragoman.core.tool import Tool
from dragoman.mcp.client.upstream_manager import UpstreamManager
from dragoman.mcp.protocol.tool_names import build_canonical_name
from dragoman.oauth.logins.accounts import AGENT, LoginAccount
from dragoman.oauth.logins.desk import HubLoginDesk, build_no_account


@dataclass(frozen=True, slots=True)
class LoginAdmin:
    """Implements `web.api_logins.LoginSource`."""

    _desk: HubLoginDesk
    _registered: RegisteredAgents
    _hub: Hub
    _upstreams: UpstreamManager

    async def begin(
        self,
        kind: str,
        name: str,
        by: Principal,
        scopes: tuple[str, ...],
        *,
        device: bool,
        shared: bool,
    ) -> dict[str, Any]:
        account = self._find(kind, name, by)
        if device:
            login, shown = await self._desk.begin_device(account, by, scopes, shared=shared)
            return {**login.render(), **shown, "expires_at": login.expires_at}
        base = self._desk.find_base()
        if base is None:
            raise Unreachable(
                "this hub has no address that a browser can return to: start it with dragoman up, "
                "or use the device flow",
                sent=False,
            )
        login = self._desk.begin(account, by, scopes, shared=shared)
        url = self._desk.build_url(base, login)
        return {**login.render(), "url": url, "expires_at": login.expires_at}

    def get_login(self, id: str, by: Principal) -> dict[str, Any]:
        return self._desk.get_own_login(id, by).render()

    def describe(self, kind: str, name: str, by: Principal, *, all: bool) -> dict[str, Any]:
        account = self._find(kind, name, by)
        own = SHARED if not account.is_per_user else find_holder_of(by)
        found: dict[str, Any] = {"name": account.name}
        if own is not None:
            found |= self._desk.describe(account, own)
        if all:
            holders = account.list_holders()
            found["logins"] = [
                {"holder": render_holder(one), **self._desk.describe(account, one)}
                for one in holders
            ]
        return found

    async def forget(
        self, kind: str, name: str, by: Principal, *, holder: str | None, all: bool
    ) -> dict[str, Any]:
        """An administrator who names no holder at a server with shared credentials removes that."""
        account = self._find(kind, name, by)
        if all:
            holders = account.list_holders()
        elif holder is not None:
            known = {render_holder(one): one for one in account.list_holders()}
            holders = [known[holder]] if holder in known else []
        else:
            holders = [self._desk.find_holder(account, by)]
        removed = [await self._desk.forget(account, one) for one in holders]
        return {"name": account.name, "removed": [one for one in removed if one is not None]}

    def _find(self, kind: str, name: str, by: Principal) -> LoginAccount:
        """Finds the account at a server or agent. One that the principal does not know of is
        reported as missing; only the errors of administrators name similar ones."""
        asked, is_admin = name, self._desk.may_administer(by)
        try:
            if kind == AGENT:
                name = self._registered.find(name).name  # by id or slug, too
            account = self._desk.get_account(name)
        except NotFound:
            if is_admin:
                raise
            raise build_no_account(asked) from None
        if not is_admin and not self._is_known(name, by):
            raise build_no_account(asked)
        if account.spec.kind != kind:
            raise NotFound(f'there is no {kind} "{asked[:200]}"')
        return account

    def _is_known(self, name: str, by: Principal) -> bool:
        """Whether the principal may list a tool of the server or agent, or what stands for its
        tools while they are unknown."""
        hub = self._hub
        tools = [tool for catalog in hub.catalogs.values() for tool in catalog.list_offered(name)]
        target = self._upstreams.find(name) or self._registered.find_target(name)
        if target is not None:
            stand_in = build_canonical_name(name, "login")
            tools.append(Tool(name=stand_in, alias=stand_in, remote_name="login", target=target))
        return any(hub.authorizer.can_list(by, tool) for tool in tools)
