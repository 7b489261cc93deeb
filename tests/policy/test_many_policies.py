"""Many policies in one file: their time and their places."""

from __future__ import annotations

import pytest
from tests.cpu_time import measure_cpu

from dragoman.policy.lint import split_statements
from dragoman.policy.loader import AT_ONCE, check_texts


def write(count: int) -> list[str]:
    return [
        f'// the policy {number}\n@id("p{number}")\npermit (principal, action, resource == '
        f'Hub::Tool::"a.t{number}");\n'
        for number in range(count)
    ]


def test_time_grows_with_the_number_of_policies_and_not_with_its_square() -> None:
    few, many = (
        "\n".join(
            f"permit (principal, action, resource) when {{ context.depth == {number} }};"
            for number in range(count)
        )
        for count in (250, 2_000)
    )
    assert check_texts({"own.cedar": few}).policy_set is None  # each of them is invalid
    small = measure_cpu(lambda: check_texts({"own.cedar": few}))
    # 8 times the policies; the square is 64.
    assert measure_cpu(lambda: check_texts({"own.cedar": many}), 1) < 16 * small


@pytest.mark.parametrize("wrong", [0, AT_ONCE - 1, AT_ONCE, 2 * AT_ONCE + 3])
def test_a_wrong_policy_among_many_is_found_with_its_line(wrong: int) -> None:
    texts = write(2 * AT_ONCE + 10)
    texts[wrong] = texts[wrong].replace(");\n", ") when { context.nothing == 1 };\n")
    findings = [one for one in check_texts({"own.cedar": "".join(texts)}).findings if one.line]
    assert {(one.policy, one.line) for one in findings if one.level == "error"} == {
        (f"p{wrong}", 3 * wrong + 2)
    }


def test_all_policies_have_their_text_and_line() -> None:
    count = 2 * AT_ONCE + 10
    found = check_texts({"own.cedar": "".join(write(count))}).policy_set
    assert found is not None
    own = [one for one in found.policies if not one.guardrail]
    assert [(one.id, one.line) for one in own] == [(f"p{n}", 3 * n + 2) for n in range(count)]
    assert all(f'@id("{one.id}")' in one.text for one in own)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", []),
        ("// nothing\n", []),
        ("a;", [1]),
        ("\n\na;\n// b;\nc;d", [3, 5, 5]),
        ('a "x;\n" ;\nb;\n', [1, 3]),
    ],
)
def test_statements_have_their_lines(text: str, lines: list[int]) -> None:
    assert [one.line for one in split_statements(text)] == lines
