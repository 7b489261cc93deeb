"""`/api/policies`: the real engine on a real folder, behind a real socket."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.permissive_hub import call_tool, complete_catalogs
from tests.web.mcp_http_fixture import Answer, HubRig, Sources

from dragoman import guards
from dragoman.app.config_watch import LiveConfig
from dragoman.app.policy_admin.known_ids import principal_from_key
from dragoman.app.policy_admin.service import PolicyService, load_policies
from dragoman.config import Config, parse
from dragoman.core.bus import Bus
from dragoman.core.call import Call, Result
from dragoman.core.call_chains import CallChains
from dragoman.core.catalog import Catalog, admit_all
from dragoman.core.errors import AuthorizationError, ConfigError
from dragoman.core.events import PolicyChanged
from dragoman.core.hub import Hub
from dragoman.core.kept_results import KeptResults
from dragoman.core.local_agents import AgentProfiles
from dragoman.core.principal import OWNER, Principal
from dragoman.core.question_handles import QuestionHandles
from dragoman.core.rate_limiter import LocalRateLimiter
from dragoman.core.tool import INSTRUCTIONS, TargetFacts, TargetTraits, Tool
from dragoman.core.tool_filter import EVERYTHING
from dragoman.guards.carried_labels import CarriedLabels
from dragoman.guards.config import Limits, TaintSettings
from dragoman.guards.grants import GrantedAuthorizer
from dragoman.guards.tool_flows import ToolFlowTable
from dragoman.policy.folder import MAX_WRITTEN, read_default_texts
from dragoman.policy.loader import check_folder
from dragoman.stores.audit.log import SqliteAuditLog
from dragoman.stores.audit.reader import AuditReader, AuditRecord
from dragoman.stores.keys import KeyStore
from dragoman.stores.labels import MemoryLabels
from dragoman.web.api import Api
from dragoman.web.api_policies import PoliciesApi
from dragoman.web.app import TcpApp
from dragoman.web.auth import AllowedNames, Authenticator
from dragoman.web.http.listener import HttpListener
from dragoman.web.openapi import Operation, list_routes
from dragoman.web.peer_process import ALONE

CI = Principal("key", "ci")
BOSS = "the-api-key-of-the-owner"
NO_WIPING = """
@id("no-wiping")
@why("what is wiped is gone")
forbid (principal, action in Hub::Action::"any_call", resource == Hub::Tool::"work.wipe");
"""


class Work:
    name = "work"
    traits = TargetTraits(facts=TargetFacts(type="Server", transport="stdio"))

    async def run(self, call: Call) -> Result:
        return Result(content=[{"type": "text", "text": "done"}])


class Hub_:
    """A hub of one server, and its API over HTTP."""

    def apply(self, config: str) -> None:
        new = parse(config)
        self.side.apply(self.live.replace(new, {}), new)

    def __init__(self, home: Path, config: Config) -> None:
        self.home = home
        self.bus, catalog = Bus(), Catalog(review=admit_all)
        self.keys = KeyStore(home)
        self.audit = SqliteAuditLog(home)
        self.live = live = LiveConfig(config)
        work, chains = Work(), CallChains(bytes(32))
        catalogs = complete_catalogs(catalog)
        shown = {kind: one for kind, one in catalogs.items() if kind != INSTRUCTIONS}
        try:
            loaded = load_policies(
                home,
                live,
                self.keys,
                shown,
                lambda name: work.traits.facts if name == "work" else None,
            )
        except BaseException:
            self.keys.close()
            self.audit.close()
            raise
        engine = GrantedAuthorizer(loaded.engine, AgentProfiles())
        stages = guards.build_stages(
            self.audit,
            self.bus,
            Limits(),
            QuestionHandles(bytes(32), 60),
            chains,
            engine,
            KeptResults(1, 60),
            LocalRateLimiter(),
            ToolFlowTable(TaintSettings()),
            CarriedLabels(MemoryLabels()),
        )
        self.hub = Hub(catalogs, self.bus, stages, chains, engine)
        self.side = PolicyService(
            home, self.audit, self.bus, shown, loaded, self.hub.find, lambda caller, tool: True
        )
        catalog.offer(
            "work",
            [
                Tool(
                    name=f"work.{name}",
                    alias=f"mcp_work_{name}",
                    remote_name=name,
                    destructive=name == "wipe",
                    target=work,
                )
                for name in ("read", "wipe")
            ],
        )
        self.port = 0

    @property
    def policies(self) -> Path:
        return self.home / "policies"

    async def ask(self, method: str, path: str, body: Any = None, who: str = BOSS) -> Any:
        """The answer, with its status."""
        asking = HubRig(self.port, None, None, None, None, None)  # type: ignore[arg-type]
        answer: Answer = await asking.send(method, path, body, who=who)
        return {"status": answer.status, **(await answer.json())}

    async def call(self, name: str, who: Principal = CI) -> Result:
        return await call_tool(self.hub, who, name, {}, door="api", view=EVERYTHING)

    async def permitted(self, name: str, who: Principal = CI) -> bool:
        try:
            await self.call(name, who)
        except AuthorizationError:
            return False
        return True

    def records(self) -> list[AuditRecord]:
        self.audit.flush()
        reader = AuditReader(self.home)
        try:
            return reader.list_records(1000)
        finally:
            reader.close()


@asynccontextmanager
async def hub(home: Path, config: str = "") -> AsyncIterator[Hub_]:
    made = Hub_(home, parse(f'api_key = "{BOSS}"\n{config}'))
    sock = socket.create_server(("127.0.0.1", 0))
    sock.setblocking(False)
    made.port = sock.getsockname()[1]
    auth = Authenticator(BOSS, lambda key: Principal("key", key), lambda: True)
    api = Api(made.hub, Sources(), parts=[PoliciesApi(made.side)])
    listener = HttpListener(
        TcpApp(auth, AllowedNames("127.0.0.1", None, [], []), {}, api, peers=ALONE), sock
    )
    await listener.start()
    try:
        yield made
    finally:
        await made.side.close()
        await listener.drain(0.5)
        listener.abort()
        made.audit.close()
        made.keys.close()


async def test_active_policy_is_not_reported_as_failed(tmp_path: Path) -> None:
    policies = tmp_path / "policies"
    policies.mkdir()
    left = [policies / ".mine.abcdefgh.tmp", tmp_path / ".policies.abcdefgh"]
    left[0].write_text("forbid (")  # of a hub that was killed while it wrote
    left[1].mkdir()
    (policies / "default.cedar").write_text(read_default_texts()["default.cedar"])
    async with hub(tmp_path) as at:
        assert not any(one.exists() for one in left)
        (policies / "mine.cedar.off").mkdir()  # it cannot be unlinked
        made = await at.ask("POST", "/api/policies", {"name": "mine", "text": NO_WIPING})
        assert made["status"] == 200 and made["ok"]
        (finding,) = [one for one in made["findings"] if "could not be removed" in one["message"]]
        assert finding["level"] == "warning" and "mine.cedar.off" in finding["message"]
        assert not await at.permitted("work.wipe")


@pytest.mark.promise("R11")
async def test_policy_is_created_listed_disabled_enabled_and_deleted(tmp_path: Path) -> None:
    async with hub(tmp_path) as at:
        first = await at.ask("GET", "/api/policies")
        assert first["status"] == 200 and first["default"] and first["mode"] == "enforce"
        assert await at.permitted("work.wipe")

        made = await at.ask("POST", "/api/policies", {"name": "mine", "text": NO_WIPING})
        assert made["status"] == 200 and made["ok"] and made["snapshot"] != first["snapshot"]
        assert (at.policies / "mine.cedar").read_text() == NO_WIPING
        assert not await at.permitted("work.wipe") and await at.permitted("work.read")

        listed = await at.ask("GET", "/api/policies")
        assert listed["snapshot"] == made["snapshot"] and listed["problem"] == ""
        assert [(each["name"], each["enabled"]) for each in listed["files"]] == [
            ("default", True),
            ("mine", True),
        ]
        assert listed["files"][1]["policies"] == [
            {"id": "no-wiping", "effect": "forbid", "line": 2}
        ]
        one = await at.ask("GET", "/api/policies/mine")
        assert one["text"] == NO_WIPING and one["enabled"]

        off = await at.ask("PATCH", "/api/policies/mine", {"enabled": False})
        assert off["status"] == 200 and (at.policies / "mine.cedar.off").exists()
        assert await at.permitted("work.wipe")
        assert not (await at.ask("GET", "/api/policies/mine"))["enabled"]
        await at.ask("PATCH", "/api/policies/mine", {"enabled": True})
        assert not await at.permitted("work.wipe")

        await at.ask("PATCH", "/api/policies/mine", {"enabled": False})
        again = await at.ask("POST", "/api/policies", {"name": "mine.cedar", "text": NO_WIPING})
        assert again["name"] == "mine" and not (at.policies / "mine.cedar.off").exists()
        assert not await at.permitted("work.wipe")

        gone = await at.ask("DELETE", "/api/policies/mine")
        assert gone["status"] == 200 and await at.permitted("work.wipe")
        assert sorted(file.name for file in at.policies.iterdir()) == ["default.cedar"]
        assert (await at.ask("GET", "/api/policies/mine"))["status"] == 404


async def test_warning_about_a_policy_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    vague = '@id("vague") forbid (principal, action, resource == Hub::Tool::"none.there");'
    async with hub(tmp_path) as at:
        for name, text in {"vague": vague, "mine": NO_WIPING}.items():
            assert (await at.ask("POST", "/api/policies", {"name": name, "text": text}))["ok"]
    assert caplog.text.count('it names an unknown Tool::"none.there"') == 1


@pytest.mark.promise("R11")
async def test_unusable_policy_set_is_refused_with_all_errors(tmp_path: Path) -> None:
    bad = 'permit (principal, action, resource);\n@id("a") forbid (principal, action, resurce);'
    async with hub(tmp_path) as at:
        await at.ask("POST", "/api/policies", {"name": "mine", "text": NO_WIPING})
        before = await at.ask("GET", "/api/policies")
        for name, text in {
            "mine": "forbid (",
            "more": bad,
            "twice": NO_WIPING,
            "typo": NO_WIPING.replace("no-wiping", "b").replace("any_call", "any_cal"),
        }.items():
            answer = await at.ask("POST", "/api/policies", {"name": name, "text": text})
            assert answer["status"] == 400 and answer["error"]["kind"] == "ConfigError", name
            errors = [each for each in answer["error"]["findings"] if each["level"] == "error"]
            assert errors and all(each["file"] == f"{name}.cedar" for each in errors), errors
            assert all(each["message"] in answer["error"]["message"] for each in errors)
        assert await at.ask("GET", "/api/policies") == before
        assert sorted(file.name for file in at.policies.iterdir()) == [
            "default.cedar",
            "mine.cedar",
        ]
        assert not await at.permitted("work.wipe")


async def test_files_with_which_no_hub_would_start_are_refused(tmp_path: Path) -> None:
    async with hub(tmp_path) as at:
        await at.ask("POST", "/api/policies", {"name": "mine", "text": NO_WIPING})
        await at.ask("POST", "/api/policies", {"name": "off", "text": "// nothing"})
        await at.ask("PATCH", "/api/policies/off", {"enabled": False})
        for number in range(MAX_WRITTEN - 2):  # beside two that are there
            (at.policies / f"f{number}.cedar").write_text("// nothing")
        for method, path, body in (
            ("POST", "/api/policies", {"name": "more", "text": "// nothing"}),
            ("PATCH", "/api/policies/off", {"enabled": True}),
        ):
            answer = await at.ask(method, path, body)
            assert answer["status"] == 400 and "201 policy files" in answer["error"]["message"]
        assert not (at.policies / "more.cedar").exists()
        changed = NO_WIPING.replace("gone", "lost")
        answer = await at.ask("POST", "/api/policies", {"name": "mine", "text": changed})
        assert answer["status"] == 200  # there are no more files than before
        # What hubs of a cluster have added at the same time prevents no start.
        for number in range(10):
            (at.policies / f"g{number}.cedar").write_text("// nothing")
        assert not check_folder(at.policies).findings
        assert (await at.ask("DELETE", "/api/policies/mine"))["status"] == 200


@pytest.mark.promise("R11")
async def test_policy_files_are_loaded_atomically(tmp_path: Path) -> None:
    async with hub(tmp_path) as at:
        received: list[PolicyChanged] = []
        at.bus.observe(PolicyChanged, received.append)
        lists: list[int] = []
        at.hub.catalog.on_change(lambda: lists.append(1))
        at.side.folder.create_default()
        (at.policies / "mine.cedar").write_text(NO_WIPING)
        await seen(at)
        good = at.side.engine.policy_set.hash
        assert not await at.permitted("work.wipe") and received[-1] == PolicyChanged(good, "")
        assert lists == [1]  # clients with a list read it again

        (at.policies / "mine.cedar").write_text("forbid (principal")
        await seen(at)
        listed = await at.ask("GET", "/api/policies")
        assert listed["snapshot"] == good and "mine.cedar" in listed["problem"]
        assert received[-1].snapshot == good and received[-1].problem == listed["problem"]
        assert not await at.permitted("work.wipe")

        (at.policies / "mine.cedar").write_text("")
        await seen(at)
        assert (await at.ask("GET", "/api/policies"))["problem"] == ""
        assert await at.permitted("work.wipe")


async def seen(at: Hub_) -> None:
    """As the hub looks, from time to time, until nothing is new any more."""
    for _ in range(4):
        await at.side.check()


async def test_hub_does_not_start_with_invalid_policies(tmp_path: Path) -> None:
    (tmp_path / "policies").mkdir()
    (tmp_path / "policies" / "mine.cedar").write_text("permit (")
    with pytest.raises(ConfigError, match=r"mine\.cedar"):
        async with hub(tmp_path):
            pass


NOTHING: Any = None
OPERATIONS = [operation for operation, _ in list_routes(PoliciesApi(NOTHING))]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: f"{one.method} {one.path}")
async def test_policy_api_needs_admin(tmp_path: Path, operation: Operation) -> None:
    method, path = operation.method, operation.path.replace("{name}", "default")
    async with hub(tmp_path) as at:
        body: Any = {} if method in ("POST", "PATCH") else None
        answer = await at.ask(method, path, body, who="ci")
        assert answer["status"] == 403 and "admin" in answer["error"]["message"]
        assert not at.policies.exists()


async def test_policy_changes_are_audited_with_their_principal(tmp_path: Path) -> None:
    async with hub(tmp_path) as at:
        old = at.side.engine.policy_set.hash
        await at.ask("POST", "/api/policies", {"name": "mine", "text": NO_WIPING})
        (at.policies / "mine.cedar").write_text(NO_WIPING.replace("wipe", "read"))
        await seen(at)
        by_hand, by_api = (each for each in at.records() if each.intent["verb"] == "policy.change")
        assert by_api.intent["caller"] == "key:api_key" and by_api.conclusion["was"] == old
        assert by_api.conclusion["added"] == ["no-wiping"]
        assert by_hand.intent["caller"] == "files"
        assert by_hand.conclusion["changed"] == ["no-wiping"]
        assert by_hand.conclusion["policy_set"] == at.side.engine.policy_set.hash


async def test_change_that_locks_out_its_author_is_refused(tmp_path: Path) -> None:
    async with hub(tmp_path) as at:
        at.side.folder.create_default()
        refused = await at.ask("DELETE", "/api/policies/default")
        assert refused["status"] == 400 and "admin" in refused["error"]["message"]
        assert (at.policies / "default.cedar").exists()
        forced = await at.ask("DELETE", "/api/policies/default?force=1")
        assert forced["status"] == 200
        assert (await at.ask("GET", "/api/policies"))["status"] == 403


async def test_names_of_routes_are_no_files_and_flags_are_checked(tmp_path: Path) -> None:
    async with hub(tmp_path) as at:
        for name, method in (("explain", "POST"), ("validate", "POST"), ("who-can", "GET")):
            answer = await at.ask("DELETE", f"/api/policies/{name}")
            assert (answer["status"], answer["error"]["message"]) == (405, f"use {method}")
        answer = await at.ask("DELETE", "/api/policies/default?force=yes")
        assert (answer["status"], answer["error"]["message"]) == (400, "force must be 0 or 1")


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".x", "x" * 65, "ä", "explain", "who-can", 7])
async def test_invalid_policy_name_is_refused(tmp_path: Path, name: Any) -> None:
    async with hub(tmp_path) as at:
        answer = await at.ask("POST", "/api/policies", {"name": name, "text": NO_WIPING})
        assert answer["status"] == 400 and not at.policies.exists()


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/api/policies", {"name": "x", "text": 1}),
        ("POST", "/api/policies", {"name": "x", "text": "x" * 300_000}),
        ("POST", "/api/policies", {"name": "x", "text": "", "more": 1}),
        ("POST", "/api/policies", {"name": "x", "text": "", "force": "yes"}),
        ("PATCH", "/api/policies/default", {"enabled": 1}),
        ("PATCH", "/api/policies/default", {}),
        ("POST", "/api/policies/validate", {"text": "", "texts": {}}),
        ("POST", "/api/policies/validate", {"texts": {"../x.cedar": ""}}),
        ("POST", "/api/policies/validate", {"texts": {"x.txt": ""}}),
        ("POST", "/api/policies/validate", {"texts": {"x.cedar": 1}}),
        ("POST", "/api/policies/validate", {"texts": {f"{n}.cedar": "" for n in range(201)}}),
        ("POST", "/api/policies/explain", {"principal": "key:api_key"}),
        (
            "POST",
            "/api/policies/explain",
            {"principal": "key:api_key", "tool": "work.read", "x": 1},
        ),
        (
            "POST",
            "/api/policies/explain",
            {"principal": "key:api_key", "tool": "work.read", "context": {"deptH": 1}},
        ),
        (
            "POST",
            "/api/policies/explain",
            {"principal": "key:api_key", "tool": "work.read", "roles": "x"},
        ),
        (
            "POST",
            "/api/policies/explain",
            {"principal": "key:api_key", "tool": "work.read", "roles": ["x"] * 101},
        ),
        (
            "POST",
            "/api/policies/explain",
            {
                "principal": "key:api_key",
                "tool": "work.read",
                "context": {f"m{number}": 1 for number in range(101)},
            },
        ),
        (
            "POST",
            "/api/policies/validate",
            {"texts": {f"{name}.cedar": " " * (255 * 1024) for name in "abcde"}},
        ),
        ("GET", "/api/policies/who-can", None),
        ("GET", "/api/policies/what-can", None),
        ("POST", "/api/policies/replay", {"since": 0}),
        ("POST", "/api/policies/replay", {"texts": {}}),
        ("POST", "/api/policies/replay", {"texts": {}, "since": "yesterday"}),
        ("POST", "/api/policies/replay", {"texts": {}, "since": True}),
        ("POST", "/api/policies/replay", {"texts": {}, "since": 0, "limit": 0}),
    ],
)
async def test_invalid_request_is_refused(
    tmp_path: Path, method: str, path: str, body: Any
) -> None:
    async with hub(tmp_path) as at:
        answer = await at.ask(method, path, body)
        assert answer["status"] == 400 and answer["error"]["message"]


@pytest.mark.promise("R11")
async def test_policy_texts_are_validated_and_tested_without_activation(tmp_path: Path) -> None:
    async with hub(tmp_path) as at:
        before = at.side.engine.policy_set.hash
        fine = await at.ask("POST", "/api/policies/validate", {"text": NO_WIPING})
        assert fine["ok"] and fine["policies"] == 1 and fine["findings"] == []
        unknown = await at.ask(
            "POST", "/api/policies/validate", {"text": NO_WIPING.replace("work.wipe", "work.wip")}
        )
        assert unknown["ok"] and [each["level"] for each in unknown["findings"]] == ["warning"]
        assert "work.wip" in unknown["findings"][0]["message"]
        bad = await at.ask("POST", "/api/policies/validate", {"texts": {"x.cedar": "permit"}})
        assert bad["status"] == 200 and not bad["ok"] and bad["findings"][0]["file"] == "x.cedar"
        timed = NO_WIPING.replace(");", ') when { context.now > datetime("2030-01-01") };')
        slow = await at.ask("POST", "/api/policies/validate", {"text": timed})
        assert slow["uncached"] == [{"id": "no-wiping", "reads": ["context.now"]}]

        assert (await at.ask("POST", "/api/policies/test", {}))["tests"] == []
        own = {"name": "mine", "text": NO_WIPING}  # with the rest of the folder, or the defaults
        defaults = sum(text.count("@id(") for text in read_default_texts().values())
        whole = await at.ask("POST", "/api/policies/validate", own)
        assert whole["ok"] and whole["policies"] == 1 + defaults
        assert (await at.ask("POST", "/api/policies/test", own))["ok"]
        for wrong in ({**own, "name": "../x"}, {**own, "texts": {}}, {**own, "text": 1}):
            assert (await at.ask("POST", "/api/policies/validate", wrong))["status"] == 400, wrong
        assert at.side.engine.policy_set.hash == before and not at.policies.exists()


async def test_invalid_context_is_a_client_error(tmp_path: Path) -> None:
    async with hub(tmp_path) as at:
        at.keys.create("ci", owner="ann", expires_at=None, scopes=["call"])
        asked = {"principal": "key:ci", "tool": "work.read"}
        wrong: dict[str, list[Any]] = {
            "now": [1e308, -1e308, 2**63, [], {}, "x", True],
            "depth": [2**63, 2**64 - 1, 1e308, [], {}],
            "max_depth": [2**63, -(2**63)],
            "args": [[], {"a": 2**64 - 1}, {"a": 1e308}],
        }
        for context in (
            *({name: odd} for name, values in wrong.items() for odd in values),
            {"now": "0001-01-01T00:00:00+23:59"},
            {"now": "9999-12-31T23:59:59-23:59"},
            *({name: [[]]} for name in ("chain", "labels", "scopes")),
        ):
            answer = await at.ask("POST", "/api/policies/explain", {**asked, "context": context})
            assert answer["status"] in (200, 400), (context, answer)
            if "now" in context:
                assert answer["status"] == 400, context
        good = await at.ask("POST", "/api/policies/explain", {**asked, "context": {"now": 0}})
        assert good["allowed"]


async def test_a_decision_is_explained(tmp_path: Path) -> None:
    async with hub(tmp_path) as at:
        at.keys.create("ci", owner="ann", expires_at=None, scopes=["call"])
        await at.ask("POST", "/api/policies", {"name": "mine", "text": NO_WIPING})

        async def explain(principal: str, tool: str, **more: Any) -> Any:
            asked = {"principal": principal, "tool": tool, **more}
            return await at.ask("POST", "/api/policies/explain", asked)

        allowed = await explain("key:ci", "mcp_work_read")
        assert allowed["allowed"] and allowed["listed"] and allowed["tool"] == "work.read"
        assert [rule["id"] for rule in allowed["permits"]] == ["everybody"]
        assert allowed["words"].startswith("allowed: ") and not allowed["needed"]

        denied = await explain("ci", "work.wipe")
        assert not denied["allowed"] and not denied["listed"]
        assert [rule["id"] for rule in denied["forbids"]] == ["no-wiping"]
        assert "no-wiping (mine.cedar:" in denied["needed"]

        reads = NO_WIPING.replace(");", ') when { context.args.contains("all=true") };')
        await at.ask("POST", "/api/policies", {"name": "mine", "text": reads})
        assert (await explain("ci", "work.wipe"))["allowed"]
        assert not (await explain("ci", "work.wipe", context={"args": {"all": True}}))["allowed"]

        guarded = await explain("key:ci", "work.read", context={"depth": 9})
        assert not guarded["allowed"] and "depth-breaker" in guarded["needed"]

        admin = await explain("key:ci", "-", action="admin")
        assert not admin["allowed"] and admin["listed"] is None
        assert 'Hub::Action::"admin"' in admin["example"]
        assert 'the key "ci" does not have the scope "admin"' in admin["needed"]
        as_owner = await explain("key:nobody", "-", action="admin", roles=["owner"])
        assert as_owner["allowed"]

        at.keys.create("meter", owner="ann", expires_at=None, scopes=["metrics"])
        narrow = await explain("key:meter", "work.read")
        assert not narrow["allowed"] and not narrow["listed"] and narrow["decision"] == "permit"
        assert 'does not have the scope "call"; add it with: ' in narrow["words"]
        assumed = await explain("key:meter", "work.read", context={"scopes": ["call"]})
        assert assumed["allowed"]
        who = await at.ask("GET", "/api/policies/who-can?tool=work.read")
        meter = next(each for each in who["principals"] if each["name"] == "key:meter")
        assert not meter["allowed"] and not meter["listed"] and '"call"' in meter["why"]

        unknown = await explain("key:c", "work.read")
        assert unknown["status"] == 404 and '"key:ci"' in unknown["error"]["message"]
        nothing = await explain("key:ci", "work.reed")
        assert nothing["status"] == 404 and '"work.read"' in nothing["error"]["message"]


async def test_a_server_that_calls_back_is_an_agent_to_policies(tmp_path: Path) -> None:
    text = NO_WIPING.replace("principal,", 'principal == Hub::Agent::"work",')
    async with hub(tmp_path) as at:
        at.keys.create(
            "back", owner="ann", expires_at=None, scopes=["call"], roles=["worker"], target="work"
        )
        checked = await at.ask("POST", "/api/policies/validate", {"text": text})
        assert checked["findings"] == []  # it is known here
        await at.ask("POST", "/api/policies", {"name": "mine", "text": text})
        asked = {"principal": "agent:work", "tool": "work.wipe"}
        denied = await at.ask("POST", "/api/policies/explain", asked)
        assert not denied["allowed"] and denied["principal"] == 'Hub::Agent::"work"'
        who = await at.ask("GET", "/api/policies/who-can?tool=work.wipe")
        assert {each["name"]: (each["agent"], each["allowed"]) for each in who["principals"]} == {
            "owner:owner": ("", True),
            "key:api_key": ("", True),
            "key:back": ("work", False),
        }
        caller = principal_from_key(at.keys.list()[0])
        assert caller.roles == ("worker",) and not await at.permitted("work.wipe", caller)
        by_role = text.replace("no-wiping", "b").replace(
            '== Hub::Agent::"work"', 'in Hub::Role::"worker"'
        )
        assert not (await at.ask("POST", "/api/policies/validate", {"text": by_role}))["findings"]


async def test_suggested_policy_example_permits_the_call(tmp_path: Path) -> None:
    async with hub(tmp_path) as at:
        owner = '@id("owner") permit (principal in Hub::Role::"owner", action, resource);'
        await at.ask("POST", "/api/policies", {"name": "default", "text": owner})
        at.keys.create("ci", owner="ann", expires_at=None, scopes=["call"])
        asked = {"principal": "key:ci", "tool": "work.read"}
        denied = await at.ask("POST", "/api/policies/explain", asked)
        assert not denied["allowed"] and denied["example"]
        done = await at.ask("POST", "/api/policies", {"name": "ci", "text": denied["example"]})
        assert done["status"] == 200, done
        assert (await at.ask("POST", "/api/policies/explain", asked))["allowed"]
        assert await at.permitted("work.read")


async def test_who_can_and_what_can_match_actual_decisions(tmp_path: Path) -> None:
    async with hub(tmp_path) as at:
        at.keys.create("ci", owner="ann", expires_at=None, scopes=["call"])
        at.keys.create("old", owner="ann", expires_at=None, scopes=["call"])
        at.keys.revoke("old")
        await at.ask("POST", "/api/policies", {"name": "mine", "text": NO_WIPING})
        who = await at.ask("GET", "/api/policies/who-can?tool=mcp_work_read")
        assert who["tool"] == "work.read"
        names = [each["name"] for each in who["principals"]]
        assert names == ["owner:owner", "key:api_key", "key:ci"]  # a revoked key has no principal
        assert all(each["allowed"] and each["listed"] for each in who["principals"])
        nobody = await at.ask("GET", "/api/policies/who-can?tool=work.wipe")
        assert {tuple(each["policies"]) for each in nobody["principals"]} == {("no-wiping",)}
        what = await at.ask("GET", "/api/policies/what-can?principal=key:ci")
        assert [(each["name"], each["allowed"]) for each in what["tools"]] == [
            ("work.read", True),
            ("work.wipe", False),
        ]
        for each in what["tools"]:
            assert each["allowed"] == await at.permitted(each["name"])
        assert (await at.ask("GET", "/api/policies/what-can?principal=x"))["status"] == 404


@pytest.mark.promise("R11")
async def test_replay_lists_only_decisions_that_a_draft_changes(tmp_path: Path) -> None:
    async with hub(tmp_path) as at:
        at.keys.create("ci", owner="ann", expires_at=None, scopes=["call"])
        ci = principal_from_key(at.keys.list()[0])
        await at.call("work.wipe", ci)  # before the requested one
        begun = time.time()
        for _ in range(3):
            await at.call("work.wipe", ci)
        await at.call("work.read", ci)
        await at.call("work.wipe", OWNER)
        await at.call("work.read", Principal("key", "gone"))
        at.audit.flush()

        draft = dict(at.side.folder.read_texts())
        same = await at.ask("POST", "/api/policies/replay", {"texts": draft, "since": begun})
        assert same["flips"] == [] and same["flipped"] == 0 and same["judged"] == 5
        assert sum(same["skipped"].values()) == 1 and not same["more"]

        draft["mine.cedar"] = NO_WIPING.replace("principal,", 'principal == Hub::User::"key:ci",')
        asked = {"texts": draft, "since": begun, "until": time.time()}
        turned = await at.ask("POST", "/api/policies/replay", asked)
        (flip,) = turned["flips"]
        assert (flip["caller"], flip["verb"], flip["count"]) == ("key:ci", "work.wipe", 3)
        assert (flip["was"], flip["now"]) == ("permit", "deny")
        assert flip["was_policies"] == ["everybody"] and flip["policies"] == ["no-wiping"]
        assert begun <= flip["first_at"] <= flip["last_at"] <= time.time()
        assert turned["flipped"] == 3

        one = {"name": "mine", "text": draft["mine.cedar"], "since": begun}
        assert (await at.ask("POST", "/api/policies/replay", one))["flips"] == turned["flips"]

        few = await at.ask("POST", "/api/policies/replay", {**asked, "limit": 2})
        assert few["more"]
        before = await at.ask("POST", "/api/policies/replay", {**asked, "since": 0, "until": begun})
        assert before["judged"] == 1
        bad = await at.ask("POST", "/api/policies/replay", {**asked, "texts": {"x.cedar": "?"}})
        assert bad["status"] == 400 and bad["error"]["findings"]
        assert await at.permitted("work.wipe", ci)  # nothing was put in force


async def test_minimal_policy_is_proposed_and_verified(tmp_path: Path) -> None:
    async with hub(tmp_path) as at:
        for name in ("ci", "a.b", "a_b"):  # of which two read alike
            at.keys.create(name, owner="ann", expires_at=None, scopes=["call"])
        begun = time.time()
        callers = {key.name: principal_from_key(key) for key in at.keys.list()}
        await at.call("work.read", callers["ci"])
        await at.call("work.wipe", callers["a.b"])
        await at.call("work.read", callers["a_b"])
        await at.call("work.wipe", OWNER)
        at.audit.flush()
        found = await at.ask("POST", "/api/policies/propose", {"since": begun})
        assert found["status"] == 200 and found["calls"] == 4
        assert found["denied"] == [] and found["skipped"] == 0
        assert "owner:owner" not in found["text"]  # the role has it all
        done = await at.ask("POST", "/api/policies", {"name": "default", "text": found["text"]})
        assert done["status"] == 200, done
        for key, tool, permitted in (
            ("ci", "work.read", True),
            ("ci", "work.wipe", False),
            ("a.b", "work.wipe", True),
            ("a.b", "work.read", False),
            ("a_b", "work.wipe", False),
        ):
            what = await at.ask("GET", f"/api/policies/what-can?principal=key:{key}")
            (row,) = (each for each in what["tools"] if each["name"] == tool)
            assert (row["allowed"], row["listed"]) == (permitted, permitted), (key, tool)
        assert await at.permitted("work.wipe", OWNER)


async def test_shadow_mode_is_switched_live_and_keeps_guardrails(tmp_path: Path) -> None:
    async with hub(tmp_path) as at:
        await at.ask("POST", "/api/policies", {"name": "mine", "text": NO_WIPING})
        assert not await at.permitted("work.wipe")
        at.apply(f'api_key = "{BOSS}"\n[policy]\nmode = "shadow"\n')
        assert await at.permitted("work.wipe")
        assert at.records()[0].conclusion["shadow"]["policies"] == ["no-wiping"]
        assert (await at.ask("GET", "/api/policies"))["mode"] == "shadow"
        at.apply(f'api_key = "{BOSS}"\n')
        assert not await at.permitted("work.wipe")


async def test_concurrent_policy_changes_do_not_overwrite_each_other(tmp_path: Path) -> None:
    async with hub(tmp_path) as at:

        async def write(number: int) -> int:
            text = NO_WIPING.replace("no-wiping", f"no-wiping-{number}")
            answer = await at.ask("POST", "/api/policies", {"name": f"n{number}", "text": text})
            return int(answer["status"])

        assert await asyncio.gather(*map(write, range(6))) == [200] * 6
        ids = {each.id for each in at.side.engine.policy_set.policies}
        assert {f"no-wiping-{number}" for number in range(6)} <= ids
        listed = await at.ask("GET", "/api/policies")
        assert len(listed["files"]) == 7 and listed["problem"] == ""
