"""Oversized results: truncated but usable, and readable in full by their principal for a while."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.live.conftest import RunningHub, _written_config
from tests.live.module_hub import error_kind, error_text, until
from tests.live.test_config_live import rewrite
from tests.peers import wire
from tests.peers.process import server_entry

pytestmark = pytest.mark.promise("P2")

CHARS, DATA = 1_000, 20_000
LIMITS = f"[limits]\nresult_chars = {CHARS}\ndata_chars = {DATA}\n"
KEYS = 'api_key = "the-first-key-of-this-hub"\n'
ADDRESS = re.compile(r"dragoman://results/[A-Za-z0-9_-]{20,}")


def make_text(chars: int) -> str:
    """What the server makes."""
    lines = "".join(f"line {number}\n" for number in range(chars // 6 + 1))
    return lines[:chars]


def read(hub: RunningHub, uri: str, **how: Any) -> Any:
    return hub.rpc("resources/read", {"uri": uri}, **how)


def text_at(hub: RunningHub, uri: str, **how: Any) -> str:
    (content,) = read(hub, uri, **how)["result"]["contents"]
    return str(content["text"])


def address_in(text: str) -> str:
    (found,) = set(ADDRESS.findall(text))
    return str(found)


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHub]:
    place = tmp_path_factory.mktemp("h")
    place.chmod(0o700)
    (place / "config.toml").write_text(
        _written_config(LIMITS, [server_entry("big", "mcp1_big_server")])
    )
    (place / "config.toml").chmod(0o600)
    running = RunningHub(place, [], {})
    try:
        running.wait_connected("big")
        yield running
    finally:
        problems = running.finish()
    assert not problems, problems


@pytest.mark.parametrize("era", ["modern", "legacy"])
def test_long_text_is_truncated_and_readable_in_full_and_in_parts(
    big: RunningHub, era: str
) -> None:
    result = big.call("big.read_text", {"chars": 9_000}, era=era)["result"]
    whole = make_text(9_000)
    assert result["structuredContent"] == {"result": whole}, "which has a limit of its own"
    (block,) = result["content"]
    text, _, marker = block["text"].rpartition("\n")
    assert text == whole[:CHARS]
    uri = address_in(marker)
    assert marker == (
        "[cut: 8000 of 9000 characters left out, by [limits] result_chars = 1000; for 10 minutes "
        f"the whole can be read as resource {uri}, and parts of it with ?offset=1000&limit=1000 "
        "after that address]"
    )
    assert text_at(big, uri, era=era) == whole
    parts = [text_at(big, f"{uri}?offset={n}&limit=1000", era=era) for n in range(0, 9_000, 1_000)]
    assert "".join(parts) == whole
    assert text_at(big, f"{uri}?offset=8999") == whole[-1]
    assert "offset=0&limit=50000" in error_text(read(big, f"{uri}?offset=-1"))
    assert 'repeated query parameter "offset"' in error_text(read(big, f"{uri}?offset=1&offset=2"))
    assert 'unknown parameter "page"' in error_text(read(big, f"{uri}?page=2"))
    for place in (
        "/api/a2a/dispatches?limit=1&limit=2",
        "/api/tools?x=1&x=1",
        "/api/events?verb=a&verb=b",
    ):
        answer = big.get(place)
        assert answer.status == 400 and "pass it once" in str(answer.body), place


def test_structured_content_keeps_its_shape_and_fits_its_schema(big: RunningHub) -> None:
    result = big.call("big.read_record", {"chars": 15_000})["result"]
    record = result["structuredContent"]
    assert (record["kind"], record["number"]) == ("log", 5)
    assert re.fullmatch("[0-9]{200,14999}", record["digits"]), "no marker where the schema has none"
    text, mark, _ = record["body"].partition("[cut: ")
    assert mark and make_text(15_000).startswith(text) and len(text) >= 200
    assert len(str(record)) < DATA * 1.1
    whole = big.rpc("resources/read", {"uri": address_in(record["body"])})["result"]["contents"][0]
    assert whole["mimeType"] == "application/json"
    assert '"digits":"' + "7" * 15_000 in whole["text"]
    assert "[cut: " in result["content"][0]["text"]
    assert "isError" not in result or result["isError"] is False


def test_unshortenable_result_reports_success_and_its_resource(
    big: RunningHub,
) -> None:
    result = big.call("big.read_rows", {"count": 5_000})["result"]
    assert result["isError"] is True and "structuredContent" not in result
    words = result["content"][-1]["text"]
    assert '"big.read_rows" completed' in words
    assert "longer than [limits] data_chars = 20000 and has no text that can be cut" in words
    assert text_at(big, address_in(words)).count("1000000") == 5_000


def test_binary_data_is_never_truncated(big: RunningHub) -> None:
    result = big.call("big.read_media", {"size": 120_000})["result"]
    data = result["content"][1]["data"]
    assert len(data) == 160_000
    assert result["structuredContent"]["content"][0]["data"] == data
    assert result["structuredContent"]["raw"] == data


def test_resource_has_the_data_limit_and_a_prompt_the_text_limit(big: RunningHub) -> None:
    assert text_at(big, "big://15000") == make_text(15_000)
    cut = text_at(big, "big://30000")
    assert "by [limits] data_chars = 20000; for 10 minutes" in cut
    assert text_at(big, address_in(cut)) == make_text(30_000)
    prompt = {"name": "mcp_big_long_prompt", "arguments": {"chars": "3000"}}
    (message,) = big.rpc("prompts/get", prompt)["result"]["messages"]
    assert text_at(big, address_in(message["content"]["text"])) == make_text(3_000)


def test_reading_a_kept_result_is_audited_and_it_is_unlisted(big: RunningHub) -> None:
    uri = address_in(big.call("big.read_text", {"chars": 2_000})["result"]["content"][0]["text"])
    read(big, uri)
    (entry, *_) = [one for one in reversed(big.audit()) if one["target"] == "results"]
    assert (entry["verb"], entry["kind"]) == ("results.big.read_text", "resource")
    assert entry["outcome"] == "completed"
    listed = str(big.rpc("resources/list")) + str(big.rpc("resources/templates/list"))
    assert "dragoman://" not in listed
    assert "is kept for a few minutes" in error_text(read(big, "dragoman://results/" + "x" * 24))


def test_kept_result_is_readable_only_by_its_principal_while_permitted(
    hub: Callable[..., RunningHub],
) -> None:
    running = hub([server_entry("big", "mcp1_big_server")], KEYS + LIMITS)
    running.wait_connected("big")
    key = running.command("keys", "create", "second", "--json")
    assert key.returncode == 0, key.stderr
    second = {"Authorization": f"Bearer {_key_in(key.stdout)}"}

    def ask(method: str, params: dict[str, Any], headers: dict[str, str]) -> Any:
        return wire.modern_request(running.mcp_url, method, params, headers, 20).rpc()

    def permit(tool: str) -> None:
        """This tool and nothing else, to all but the owner."""
        who = '@id("owner")\npermit (principal in Hub::Role::"owner", action, resource);'
        what = 'action in [Hub::Action::"any_call", Hub::Action::"list"]'
        words = (
            f'{who}\n@id("tool")\npermit (principal, {what}, resource == Hub::Tool::"{tool}");\n'
        )
        done = running.post("/api/policies", {"name": "default", "text": words})
        assert done.get("ok"), done

    permit("big.read_text")
    call = {"name": "big.read_text", "arguments": {"chars": 5_000}}
    uri = address_in(str(ask("tools/call", call, second)["result"]["content"]))
    assert ask("resources/read", {"uri": uri}, second)["result"]["contents"]
    assert error_kind(ask("resources/read", {"uri": uri}, running.headers)) == "NotFound"
    permit("big.read_rows")
    assert error_kind(ask("resources/read", {"uri": uri}, second)) == "NotFound"


def _key_in(printed: str) -> str:
    return str(json.loads(printed)["key"])


def test_ordinary_results_are_complete_and_limits_change_live(
    hub: Callable[..., RunningHub],
) -> None:
    entry = server_entry("big", "mcp1_big_server")
    running = hub([entry])
    running.wait_connected("big")

    def text(chars: int) -> str:
        result = running.call("big.read_text", {"chars": chars})["result"]
        assert result["structuredContent"] == {"result": make_text(chars)}
        return str(result["content"][0]["text"])

    assert text(60_000) == text_at(running, "big://60000") == make_text(60_000)
    image = running.call("big.read_media", {"size": 120_000})["result"]["structuredContent"]
    assert len(image["raw"]) == 160_000

    rewrite(running, entry, more=LIMITS)
    until(lambda: text(9_000) != make_text(9_000), 60)
    uri = address_in(text(9_000))
    rewrite(running, entry, more="[limits]\nresult_chars = 10000\nkept_megabytes = 0\n")
    until(lambda: text(9_000) == make_text(9_000), 60)
    assert text_at(running, uri) == make_text(9_000)
    assert text(11_000).endswith(
        "[cut: 1000 of 11000 characters left out, by [limits] result_chars = 10000]"
    ), "where nothing is kept there is nothing to read"
    assert '"limits' not in running.log()
