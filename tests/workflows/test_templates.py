"""Templates: paths, types, filters, comparisons, and what hostile values do: nothing."""

from __future__ import annotations

import time
from typing import Any

import pytest

from dragoman.core.errors import InvalidInput
from dragoman.workflows.templates import MAX_RENDERED, Reference, compile_value

pytestmark = pytest.mark.promise("R14")

SCOPE: dict[str, Any] = {
    "nodes": {
        "code-review": {
            "findings": [{"line": 3, "text": "a {{ nodes.secret }}"}, {"line": 9}],
            "score": 0.5,
            "ok": True,
            "none": None,
            "a key": {"x.y": 1},
            "7": "seven",
        },
        "names": ["Ada", "Bo"],
    },
    "$trigger": {"prUrl": "https://x.example/1", "count": 2, "empty": ""},
    "$env": {"CHANNEL": "#dev"},
    "$item": {"id": 5},
    "$index": 1,
    "$run": {"id": "run-1"},
}


def render(value: Any, scope: dict[str, Any] | None = None) -> Any:
    return compile_value(value).render(SCOPE if scope is None else scope)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ nodes.code-review.findings[1].line }}", 9),
        ("{{ nodes.code-review.findings[-1].line }}", 9),
        ("{{ nodes.code-review.findings.0.line }}", 3),
        ('{{ nodes.code-review["a key"]["x.y"] }}', 1),
        ("{{nodes.code-review.7}}", "seven"),
        ("{{ nodes.names }}", ["Ada", "Bo"]),
        ("{{ $trigger.count }}", 2),
        ("n={{ $trigger.count }}, {{ nodes.code-review.ok }}", "n=2, true"),
        ("[{{ nodes.code-review.none }}] {{ nodes.names }}", '[] ["Ada", "Bo"]'),
        ("{{ $env.CHANNEL }}", "#dev"),
        ("{{ $item.id }}/{{ $index }}/{{ $run.id }}", "5/1/run-1"),
        ('{{ nodes.gone.x | default("x") }}', "x"),
        ("{{ nodes.code-review.none | default(nodes.names) }}", ["Ada", "Bo"]),
        ('{{ $trigger.empty | default("x") }}', ""),
        ('{{ nodes.names | join(" + ") | upper }}', "ADA + BO"),
        ("{{ nodes.names | first | lower }}{{ nodes.names | last }}", "adaBo"),
        ("{{ nodes.names | length }}", 2),
        ("{{ nodes.names | json }}", '["Ada", "Bo"]'),
        ("{{ '  x ' | trim }}", "x"),
        ("{{ '{{ }}' }} \"{{ \"\\\"}}\" }}", '{{ }} ""}}'),
        ("{{ $trigger.count == 2 and not nodes.code-review.none }}", True),
        ("{{ nodes.code-review.ok == 1 or 'B' in nodes.names }}", False),
        ("{{ 'Bo' in nodes.names and 'x' not in $trigger.prUrl }}", False),
        ("{{ nodes.code-review.score >= 0.5 and $trigger.count < 3 }}", True),
        ("{{ ($trigger.count != 2 or true) and (null == null) }}", True),
        ({"a": ["{{ $index }}", 5, {"{{ b }}": "{{ 1 }}x"}]}, {"a": [1, 5, {"{{ b }}": "1x"}]}),
        ("no template, } and { and }}", "no template, } and { and }}"),
    ],
)  # fmt: skip
def test_a_template_renders(template: Any, expected: Any) -> None:
    found = render(template)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ nodes.code-review.find }}", '"nodes.code-review" has no member "find"'),
        ("{{ nodes.names[2] }}", "is a list of 2"),
        ("{{ nodes.names.x }}", "is a list of 2"),
        ("{{ $trigger.prUrl.host }}", '"$trigger.prUrl" is a text'),
        ("{{ $trigger.prUrl[0] }}", '"$trigger.prUrl" is a text'),
        ("{{ nodes.code-review.__class__ }}", 'no member "__class__"'),
        ("{{ nodes.names.append }}", "is a list of 2"),
        ("{{ nodes.code-review.items }}", 'no member "items"'),
        ("{{ $trigger.count | upper }}", "needs a text and got a number"),
        ("{{ nodes.names < 3 }}", "not a list and a number"),
        ("{{ 1 in 2 }}", "got a number"),
        ("{{ $event.x }}", '"$event" has no value here'),
    ],
)
def test_what_cannot_be_rendered_is_an_error_that_names_it(template: str, words: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        render(template)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "template",
    [
        "{{ }}", "{{ nodes.a", "{{ nodes. }}", "{{ nodes.a b }}", "{{ os.system }}", "{{ a }}",
        "{{ nodes.a() }}", "{{ nodes.a | eval }}", "{{ nodes.a | default }}", "{{ nodes.a | }}",
        "{{ nodes.a | upper(1) }}", "{{ nodes[0 }}", "{{ nodes.a + 1 }}", "{{ 'x }}", "{{ = }}",
        "{{ nodes.a == }}", "{{ nodes.a = 1 }}", "{{ {{ nodes.a }} }}", "{{ lambda: 1 }}",
        "{{ __import__('os') }}", "{{ nodes.a if true }}", "{{ not }}", "{{ $trigger.a; 1 }}",
        "{{ " + "(" * 100 + "1" + ")" * 100 + " }}", "{{ " + "not " * 100 + "1 }}",
        "{{ 1" + " | trim" * 100 + " }}", "{{ $env.A }}" * 3_000,
    ],
)  # fmt: skip
def test_a_bad_template_is_refused_when_it_is_compiled(template: str) -> None:
    with pytest.raises(InvalidInput):
        compile_value(template)


def test_references_are_known_without_rendering() -> None:
    compiled = compile_value(
        {"a": '{{ nodes.x.y[0] | default($trigger.z) }}', "b": ["{{ $env.A == nodes.x }}"]}
    )  # fmt: skip
    assert compiled.references == {
        Reference("nodes", ("x", "y", 0)),
        Reference("$trigger", ("z",)),
        Reference("$env", ("A",)),
        Reference("nodes", ("x",)),
    }
    assert str(Reference("nodes", ("x", 0, "a b"))) == 'nodes.x[0]["a b"]'


CYCLE: list[Any] = []
CYCLE.append(CYCLE)
DEEP: list[Any] = []
for _ in range(100_000):
    DEEP = [DEEP]
BOMB: Any = "x" * 100
for _ in range(40):
    BOMB = [BOMB, BOMB]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("{{ nodes.secret }}", "<{{ nodes.secret }}>"),
        ("}} {{ $env.CHANNEL", "<}} {{ $env.CHANNEL>"),
        ("{% raw %}${x}#{y}%(z)s{0}\\1", "<{% raw %}${x}#{y}%(z)s{0}\\1>"),
        ("' or true or '", "<' or true or '>"),
        ({"__class__": "{{ $run.id }}"}, '<{"__class__": "{{ $run.id }}"}>'),
        ("\x00\x1b[2J\ud800", "<\x00\x1b[2J\ud800>"),
        (CYCLE, "render more than"),
        (DEEP, "nested too deeply"),
        (BOMB, "render more than"),
        ("x" * 10_000_000, None),
        ("x" * (MAX_RENDERED + 1), "render more than"),
        (["x"] * 5_000_000, "render more than"),
    ],
)
def test_a_hostile_value_changes_nothing_but_itself(value: Any, expected: str | None) -> None:
    """As text, as itself, through a filter, and rendered once more from its own output."""
    scope = {"nodes": {"secret": "s3cret"}, "$trigger": {"x": value}, "$env": {"CHANNEL": "c"}}
    begun = time.thread_time()
    compiled = compile_value({"text": "<{{ $trigger.x }}>", "other": "{{ nodes.secret }}"})
    if isinstance(expected, str) and not expected.startswith("<"):
        with pytest.raises(InvalidInput, match=expected):
            compiled.render(scope)
        with pytest.raises(InvalidInput, match=expected):
            render("{{ $trigger.x | json }}", scope)
    else:
        found = compiled.render(scope)
        assert found["text"] == (expected or f"<{value}>")
        assert found["other"] == "s3cret"
        alone = render("{{ $trigger.x }}", scope)
        assert alone is value  # not a copy, however large
        again = {"$trigger": {"x": found["text"]}}
        assert render("{{ $trigger.x }}", again) is found["text"]
    assert scope["nodes"] == {"secret": "s3cret"}
    assert time.thread_time() - begun < 10  # of CPU: most take some milliseconds


def test_many_uses_of_one_large_value_are_refused() -> None:
    scope = {"$trigger": {"x": "y" * 10_000_000}}
    with pytest.raises(InvalidInput, match="render more than"):
        render(["{{ $trigger.x }}"] * 1_000, scope)
    with pytest.raises(InvalidInput, match="render more than"):
        render(["a {{ $trigger.x | upper }}"] * 2, scope)
