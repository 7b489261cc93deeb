"""Loading policies: every error of a set is reported with its position."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest
from tests.policy.policy_cases import call, key, policies, snapshot, tool

from dragoman.core.errors import ConfigError
from dragoman.policy import loader
from dragoman.policy.loader import PolicyError, check_folder, check_texts, load_policies
from dragoman.policy.policy_set import ERROR, WARNING

SHIPPED = Path(loader.__file__).parent / "shipped"
GOOD = '@id("a") permit (principal in Hub::Role::"r", action, resource);'


@pytest.mark.promise("R11")
@pytest.mark.parametrize(
    ("text", "line", "id", "said"),
    [
        ("permit (principal in Hub::Role::\"r\", action, resource);", 1, "", "id is missing"),
        ('@id permit (principal in Hub::Role::"r", action, resource);', 1, "", "id is missing"),
        (f"{GOOD}\n\n// again\n{GOOD}", 4, "a", "own.cedar:1 has it"),
        ('@id("tenant-wall") permit (principal in Hub::Role::"r", action, resource);', 1,
         "tenant-wall", "a guardrail of the hub has it"),
        ('@id("\u0430") permit (principal in Hub::Role::"r", action, resource);', 1, "",
         "'\\u0430'"),
        ('@id("a b") permit (principal in Hub::Role::"r", action, resource);', 1, "", "'a b'"),
        ('\n@id("a") permit (principal, action, resource);', 2, "a", "everything to everyone"),
        ('@id("a") permit (principal, action, resource) when { true };', 1, "a",
         "everything to everyone"),
        ('@id("a") permit (principal, action, resource) when { 1 + 1 == 2 } unless { false };', 1,
         "a", "everything to everyone"),
        ('@id("a") permit (principal, action in Hub::Action::"any_call", '
         'resource == Hub::Tool::"v\u0435rcel.x");', 1, "a", "\\u0435"),
        ('@id("a") permit (principal, action in Hub::Action::"any_call", '
         'resource == Hub::Tool::"x\\u{200b}y");', 1, "a", "\\u200b"),
        ('@id("a") permit (principal == ?principal, action, resource);', 1, "a", "template"),
        ('@id("a") permit (principal, action in Hub::Action::"any_call", resource) '
         'when { resource.destructve };', 1, "a", "destructve"),
        (f'{GOOD}\n@id("b") permit (principal, action == Hub::Action::"mcp_cal", resource);', 2,
         "b", "mcp_cal"),
        ('@id("a") permit (principal, action in Hub::Action::"any_call", resource) '
         'when { context.owner };', 1, "a", "owner"),
        ('@id("a") permit (principal, action in Hub::Action::"any_call", resource) '
         'when { resource.trust == "3" };', 1, "a", "types"),
        (f'{GOOD}\n@id("b") permit (principal action, resource);', 2, "", "unexpected token"),
        (f'{GOOD}\n@id("b") permit (principal, action, resource) when {{ "; }};', 2, "",
         "cannot be parsed"),
        (f'{GOOD}\n@id("b") permit (principal', 2, "", "unexpected end"),
        ('@id("a") permit (principal, action in Hub::Action::"any_call", resource) '
         f'when {{ context.args.contains("x={"y" * 300}") }};', 1, "a", "302 characters"),
        ('@id("a") @id("b") permit (principal, action, resource);', 1, "", "duplicate annotation"),
    ],
)  # fmt: skip
def test_policy_error_names_file_line_and_policy(text: str, line: int, id: str, said: str) -> None:
    checked = check_texts({"own.cedar": text})
    assert checked.policy_set is None
    found = [one for one in checked.findings if said in one.words]
    assert found, [str(one) for one in checked.findings]
    assert (found[0].level, found[0].file, found[0].line, found[0].policy) == (
        ERROR, "own.cedar", line, id,
    )  # fmt: skip


@pytest.mark.promise("R11")
def test_all_policy_errors_are_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.cedar").write_text('permit (principal in Hub::Role::"r", action, resource);')
    (tmp_path / "b.cedar").write_text('@id("x") permit (principal resource);')
    (tmp_path / "c.toml").write_text("[[tests]]\nname = 3")
    (tmp_path / "d.txt").write_text("not of interest")
    (tmp_path / ".e.cedar").write_text("an editor's")
    with pytest.raises(PolicyError) as raised:
        load_policies(tmp_path)
    assert isinstance(raised.value, ConfigError)
    assert {one.file for one in raised.value.findings} == {"a.cedar", "b.cedar", "c.toml"}
    for part in ("a.cedar:1: the id is missing", "b.cedar:1:", "c.toml:"):
        assert part in str(raised.value)


def test_line_numbers_are_correct_after_strings_and_comments() -> None:
    text = (
        '// a ; comment "with\n'
        '@id("one")\n@why("a; \\"b\\" // c")\n'
        'permit (principal in Hub::Role::"x;//y", action, resource);\n'
        "\n"
        '// more\n@id("two") forbid (principal in Hub::Role::"z", action, resource); '
        '@id("three") forbid (principal is Hub::Agent, action, resource); // end'
    )
    checked = check_texts({"own.cedar": text})
    assert checked.policy_set is not None
    own = [one for one in checked.policy_set.policies if not one.guardrail]
    assert [(one.id, one.line) for one in own] == [("one", 2), ("two", 7), ("three", 7)]
    assert own[0].text.startswith("@id(") and own[0].text.endswith(";")
    assert own[0].annotations["why"] == 'a; "b" // c'


def test_unknown_names_are_warnings() -> None:
    text = """
    @id("a") permit (principal in Hub::Role::"operatorr", action,
                     resource == Hub::Tool::"fs.read");
    @id("b") forbid (principal == Hub::User::"key:ci", action, resource in Hub::Org::"default");
    @id("c") forbid (principal is Hub::User, action, resource) when { 1 == 2 };
    """
    here = {("Tool", "fs.read"), ("User", "key:ci")}
    checked = check_texts({"own.cedar": text}, lambda type, id: (type, id) in here)
    assert checked.policy_set is not None
    assert [(one.level, one.policy) for one in checked.findings] == [(WARNING, "a"), (WARNING, "c")]
    assert 'Role::"operatorr"' in checked.findings[0].words
    assert checked.policy_set.warnings == checked.findings


def test_missing_folder_loads_defaults_and_an_empty_one_permits_nothing(
    tmp_path: Path,
) -> None:
    assert load_policies(None).default
    assert load_policies(tmp_path / "none").default
    (tmp_path / "empty").mkdir()
    empty = load_policies(tmp_path / "empty")
    assert not empty.default
    decision = policies(empty).decide(call(key("ci", "owner"), tool("fs.read")))
    assert (decision.allowed, decision.policies, decision.errors) == (False, (), ())


def test_oversized_policy_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.cedar").write_text(GOOD)
    (tmp_path / "b.cedar").write_text("// " + "x" * 200)
    monkeypatch.setattr(loader, "MAX_BYTES", 150)
    assert "150 bytes" in str(check_folder(tmp_path).findings[0])
    monkeypatch.setattr(loader, "MAX_BYTES", 10_000)
    monkeypatch.setattr(loader, "MAX_FILES", 1)
    assert "1 files" in str(check_folder(tmp_path).findings[0])
    monkeypatch.setattr(loader, "MAX_FILES", 10)
    monkeypatch.setattr(loader, "MAX_POLICIES", 0)
    assert "at most 0" in str(check_folder(tmp_path).findings[0])


def test_binary_policy_file_is_reported_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.cedar").write_bytes(b"\xff\xfe")
    assert str(check_folder(tmp_path).findings[0]) == "a.cedar: the file is not UTF-8 text"


@pytest.mark.parametrize(
    "condition",
    [
        "(" * 40 + "true" + ")" * 40,
        ")" * 40 + "(" * 35,
        "// a comment ends here\r" + "[" * 40,
        "[" * 100_000,
        "{a: " * 40,
        " && ".join(["context.depth > 1"] * 500),
        "if true then " * 500,
        "principal" + ".org" * 2_000,
        "1" + " - 1" * 50_000,
    ],
)
def test_process_ending_policy_is_not_parsed(condition: str) -> None:
    text = f'@id("x") permit (principal, action, resource) when {{ {condition} }};'
    checked = check_texts({"own.cedar": GOOD, "deep.cedar": text})
    assert checked.policy_set is None
    assert ("too deeply nested" in str(checked.findings)) or ("divide it" in str(checked.findings))


def test_long_policy_is_accepted() -> None:
    names = ", ".join(f'"n={number}"' for number in range(3_000))
    many = " || ".join(f"context.depth == {number}" for number in range(200))
    text = (
        '@id("x") permit (principal, action in Hub::Action::"any_call", resource) '
        f"when {{ context.args.containsAny([{names}]) && (({many})) }};"
    )
    engine = policies(snapshot(text))
    assert engine.decide(call(key("ci"), tool("fs.read"), args={"n": 2999})).allowed


def test_dangling_link_does_not_load_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "policies").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PolicyError, match="cannot be read"):
        load_policies(tmp_path / "policies")


def test_policy_path_must_be_a_folder(tmp_path: Path) -> None:
    (tmp_path / "policies").write_text(GOOD)
    with pytest.raises(PolicyError, match="cannot be read"):
        load_policies(tmp_path / "policies")


def test_set_hash_covers_exactly_the_policies() -> None:
    one = snapshot(GOOD)
    assert one.hash == snapshot(GOOD).hash
    assert one.hash == snapshot(GOOD, **{"t.toml": ""}).hash
    assert one.hash != snapshot(GOOD + "\n").hash
    assert one.hash != load_policies(None).hash


@pytest.mark.parametrize("name", sorted(loader.SHIPPED))
def test_default_set_is_valid_and_matches_its_hash(name: str) -> None:
    import cedarpy

    text = (SHIPPED / name).read_text(encoding="utf-8")
    assert sha256(text.encode()).hexdigest() == loader.SHIPPED[name]
    schema = cedarpy.Schema.from_str((SHIPPED / "hub.cedarschema").read_text(encoding="utf-8"))
    if name.endswith(".cedar"):
        result = cedarpy.validate_policies(text, schema)
        assert result.validation_passed, result.errors


def test_a_default_set_can_be_copied_and_edited() -> None:
    text = (SHIPPED / "default.cedar").read_text(encoding="utf-8")
    checked = check_texts({"own.cedar": text})
    assert checked.findings == ()


def test_modified_guardrails_refuse_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(loader.SHIPPED, "guardrails.cedar", "0" * 64)
    with pytest.raises(PolicyError, match="install the hub again"):
        load_policies(None)


GOLDEN = """
[[tests]]
name = "ci reads"
caller = "key:ci"
roles = ["r"]
tool = "fs.read"
expect = "permit"
by = ["a"]

[[tests]]
name = "nobody else"
caller = "key:other"
tool = "fs.read"
expect = "deny"

[[tests]]
name = "not from another org"
caller = "key:ci"
roles = ["r"]
org = "evil"
skill = "ops.run"
expect = "deny"
by = ["tenant-wall"]

[[tests]]
name = "nothing that was told secrets goes out"
agent = "planner"
roles = ["r"]
skill = "ops.run"
resource = { sink = ["net"], trust = 1 }
context = { labels = ["secret"], depth = 6, chain = ["a.b"] }
expect = "deny"
by = ["depth-breaker"]

[[tests]]
name = "ci rules"
caller = "key:ci"
roles = ["r"]
action = "admin"
expect = "permit"

[[tests]]
name = "its own tasks"
caller = "key:ci"
roles = ["r"]
action = "task_read"
tool = "fs.read"
context = { owner = true }
expect = "permit"

[[tests]]
name = "it is told of agents"
caller = "key:ci"
roles = ["r"]
action = "a2a_discover"
tool = "planner.message"
resource = { type = "Agent" }
expect = "permit"
"""


@pytest.mark.promise("R11")
def test_golden_decisions_run_before_activation() -> None:
    checked = check_texts({"own.cedar": GOOD, "golden.toml": GOLDEN})
    assert checked.policy_set is not None, checked.findings
    assert len(checked.outcomes) == 7
    assert all(one.passed for one in checked.outcomes)
    wrong = GOLDEN.replace('expect = "permit"\nby = ["a"]', 'expect = "deny"')
    checked = check_texts({"own.cedar": GOOD, "golden.toml": wrong})
    assert checked.policy_set is None
    assert [one.name for one in checked.outcomes if not one.passed] == ["ci reads"]
    assert str(checked.findings[0]) == (
        'golden.toml: the test "ci reads" fails: expected deny, got permit by a'
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[tests]]\nname = "x"\nexpect = "permit"\ntool = "a.b"', "either a caller or an agent"),
        ('[[tests]]\nname = "x"\nexpect = "permit"\ncaller = "key:a"', "either a tool or a skill"),
        ('[[tests]]\nname = "x"\nexpect = "permit"\ncaller = "key:a"\ntool = "a.b"\n'
         'context = { label = [] }', 'did you mean "labels"?'),
        ('[[tests]]\nname = "x"\nexpect = "permit"\ncaller = "key:a"\ntool = "a.b"\n'
         'context = { depth = "1" }', 'invalid value of context attribute "depth"'),
        ('[[tests]]\nname = "x"\nexpect = "maybe"', "maybe"),
        ('[[tests]]\nname = "x"\nexpect = "deny"\nwho = "me"', "who"),
        ("[[tests", "cannot be parsed"),
        ('[[tests]]\nname = "x"\nexpect = "deny"\ncaller = "key:a"\ntool = "a.b"\nby = ["a"]',
         "expected deny by a, got deny"),
    ],
)  # fmt: skip
def test_golden_decision_that_cannot_run_is_an_error(text: str, said: str) -> None:
    checked = check_texts({"own.cedar": GOOD, "golden.toml": text})
    assert checked.policy_set is None
    assert said in str(checked.findings[0])
