"""Templates in the values of workflows: `{{ nodes.review.findings[0] | default("none") }}`.

A small language of our own: paths, literals, filters and comparisons. Nothing is evaluated as code,
a path reads only the keys of objects and the items of lists, and what a template renders is never
read as a template again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from dragoman.core.errors import InvalidInput

NODES, TRIGGER, ENV, ITEM, INDEX, RUN, EVENT_DATA = (
    "nodes", "$trigger", "$env", "$item", "$index", "$run", "$event",
)  # fmt: skip
ROOTS: Final = (NODES, TRIGGER, ENV, ITEM, INDEX, RUN, EVENT_DATA)
"""The names with which a path begins."""

MAX_TEMPLATE_CHARS = 20_000
MAX_NESTING = 20
MAX_RENDERED = 16 * 1024 * 1024
"""Characters of all that one value renders."""
VALUE_COST = 8
"""Characters that each value counts for, beside those of its text."""
OPEN, CLOSE = "{{", "}}"


class Reference(NamedTuple):
    """What a template reads: `nodes.review.findings[0]` is the path `review, findings, 0`."""

    root: str
    path: tuple[str | int, ...] = ()

    def __str__(self) -> str:
        return render_path(self.root, self.path)


def render_path(root: str, path: Sequence[str | int]) -> str:
    text = root
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{step}" if _NAME.fullmatch(step) else f"[{json.dumps(step)}]"
    return text


# --- values --------------------------------------------------------------------------------------


class CompiledValue:
    """JSON whose templates are parsed. Immutable; one may be rendered by many runs."""

    __slots__ = ("_part", "references")

    def __init__(self, part: _Part, references: frozenset[Reference]) -> None:
        self._part = part
        self.references = references

    def render(self, scope: Mapping[str, Any]) -> Any:
        """Renders the value with the names in `scope`, which are some of `ROOTS`. A part that is
        one template alone is the value itself, which is not copied; among other text it is text.
        Raises `InvalidInput`: a path is missing, a filter does not fit, it is too large."""
        rendering = _Rendering(scope)
        try:
            return self._part(rendering)
        except RecursionError:
            raise InvalidInput("a value of a template is nested too deeply") from None


def compile_value(value: Any) -> CompiledValue:
    """Parses the templates in a JSON value; keys of objects are not templates. Raises
    `InvalidInput` for a template that cannot be parsed."""
    references: set[Reference] = set()
    return CompiledValue(_compile(value, references, 0), frozenset(references))


def has_template(value: Any) -> bool:
    """Whether a text contains a template."""
    return isinstance(value, str) and OPEN in value


def is_true(value: Any) -> bool:
    """Whether a rendered `when` is true: all but false, null, zero and what is empty."""
    return bool(value)


class _Rendering:
    """One rendering: what its templates may read, and how much they may still render."""

    __slots__ = ("_left", "scope")

    def __init__(self, scope: Mapping[str, Any]) -> None:
        self.scope = scope
        self._left = MAX_RENDERED

    def count(self, value: Any) -> None:
        """Raises `InvalidInput` if all that was rendered is too large. Values are shared and not
        copied; each use counts, because each is written out in the end."""
        waiting = [value]
        while waiting and self._left >= 0:
            one = waiting.pop()
            self._left -= VALUE_COST
            if isinstance(one, str):
                self._left -= len(one)
            elif isinstance(one, (list, tuple)) and len(one) <= self._left:
                waiting.extend(one)
            elif isinstance(one, (dict, Mapping)) and len(one) <= self._left:
                self._left -= sum(len(str(key)) for key in one)
                waiting.extend(one.values())
            elif isinstance(one, Mapping | list | tuple):
                self._left = -1
        if self._left < 0:
            raise InvalidInput(f"the templates render more than {MAX_RENDERED // 1024 // 1024} MB")


_Part = Callable[[_Rendering], Any]


def _compile(value: Any, references: set[Reference], depth: int) -> _Part:
    if depth > 100:
        raise InvalidInput("the value is nested too deeply")
    if isinstance(value, str) and OPEN in value:
        return _compile_text(value, references)
    if isinstance(value, Mapping):
        members = {key: _compile(one, references, depth + 1) for key, one in value.items()}
        if any(map(_is_dynamic, members.values())):
            return lambda now: {key: part(now) for key, part in members.items()}
    elif isinstance(value, list | tuple):
        items = [_compile(one, references, depth + 1) for one in value]
        if any(map(_is_dynamic, items)):
            return lambda now: [part(now) for part in items]
    return _Constant(value)


class _Constant:
    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self, now: _Rendering) -> Any:
        return self.value


def _is_dynamic(part: _Part) -> bool:
    return not isinstance(part, _Constant)


def _compile_text(text: str, references: set[Reference]) -> _Part:
    if len(text) > MAX_TEMPLATE_CHARS:
        raise InvalidInput(f"a text with templates has more than {MAX_TEMPLATE_CHARS} characters")
    parts: list[_Part] = []
    at = 0
    while (start := text.find(OPEN, at)) >= 0:
        if start > at:
            parts.append(_Constant(text[at:start]))
        parser = _Parser(text, start + len(OPEN), references)
        parts.append(parser.parse_template())
        at = parser.end
    if at < len(text):
        parts.append(_Constant(text[at:]))
    if len(parts) == 1:
        return _Whole(parts[0])
    return lambda now: _join(parts, now)


class _Whole:
    """A text that is one template: it keeps the type of its value."""

    __slots__ = ("_part",)

    def __init__(self, part: _Part) -> None:
        self._part = part

    def __call__(self, now: _Rendering) -> Any:
        value = self._part(now)
        now.count(value)
        return value


def _join(parts: Sequence[_Part], now: _Rendering) -> str:
    texts = []
    for part in parts:
        value = part(now)
        now.count(value)
        texts.append(_render_text(value))
    return "".join(texts)


def _render_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else _render_json(value)


def _render_json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        raise InvalidInput("a value of a template is not JSON") from None


# --- reading values ------------------------------------------------------------------------------


class _Missing(InvalidInput):
    """A path leads to nothing; `default` replaces it."""


def _read(reference: Reference, now: _Rendering) -> Any:
    if reference.root not in now.scope:
        raise _Missing(f'"{reference.root}" has no value here')
    value = now.scope[reference.root]
    for depth, step in enumerate(reference.path):
        if isinstance(value, Mapping) and isinstance(step, str) and step in value:
            value = value[step]
            continue
        index = _parse_index(step) if isinstance(value, list | tuple) else None
        if index is not None and -len(value) <= index < len(value):
            value = value[index]
            continue
        found = render_path(reference.root, reference.path[:depth])
        raise _Missing(
            f'"{reference}" is missing: "{found}" {_describe_lack(value, step)}; '
            f'use {OPEN} {reference} | default("…") {CLOSE} if it may be'
        )
    return value


def _parse_index(step: str | int) -> int | None:
    if isinstance(step, int):
        return step
    return int(step) if _DIGITS.fullmatch(step) else None


def _describe_lack(value: Any, step: str | int) -> str:
    if isinstance(value, Mapping):
        return f"has no member {json.dumps(str(step))}"
    if isinstance(value, list | tuple):
        return f"is a list of {len(value)}, without {json.dumps(step)}"
    return f"is {_name_type(value)}"


def _name_type(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "a text"
    return "an object" if isinstance(value, Mapping) else "a list"


# --- filters -------------------------------------------------------------------------------------


def _need_text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidInput(f'the filter "{name}" needs a text and got {_name_type(value)}')
    return value


def _need_list(name: str, value: Any) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise InvalidInput(f'the filter "{name}" needs a list and got {_name_type(value)}')
    return value


def _compute_length(value: Any) -> int:
    if not isinstance(value, str | Mapping | list | tuple):
        raise InvalidInput(f'the filter "length" cannot count {_name_type(value)}')
    return len(value)


def _pick(name: str, value: Any, index: int) -> Any:
    items = value if isinstance(value, str) else _need_list(name, value)
    if not items:
        raise _Missing(f'the filter "{name}" got an empty {"text" if items == "" else "list"}')
    return items[index]


def _join_items(value: Any, separator: Any = ",") -> str:
    return _need_text("join", separator).join(map(_render_text, _need_list("join", value)))


_FUNCTIONS: Final[Mapping[str, Callable[..., Any]]] = {
    "first": lambda value: _pick("first", value, 0),
    "join": _join_items,
    "json": _render_json,
    "last": lambda value: _pick("last", value, -1),
    "length": _compute_length,
    "lower": lambda value: _need_text("lower", value).lower(),
    "trim": lambda value: _need_text("trim", value).strip(),
    "upper": lambda value: _need_text("upper", value).upper(),
}
DEFAULT = "default"
FILTERS: Final = (DEFAULT, *_FUNCTIONS)
_ARGUMENTS: Final[Mapping[str, tuple[int, int, str]]] = {
    DEFAULT: (1, 1, "needs one argument"),
    "join": (0, 1, "takes at most one argument"),
}
_NO_ARGUMENTS: Final = (0, 0, "takes no argument")
_WRITING: Final = frozenset({"json", "join"})
"""The filters that write their input out as text."""


def _apply(name: str, part: _Part, arguments: Sequence[_Part]) -> _Part:
    if name == DEFAULT:
        return lambda now: _apply_default(part, arguments[0], now)
    function = _FUNCTIONS[name]

    def run(now: _Rendering) -> Any:
        value = part(now)
        if name in _WRITING:
            now.count(value)
        return function(value, *(one(now) for one in arguments))

    return run


def _apply_default(part: _Part, other: _Part, now: _Rendering) -> Any:
    try:
        value = part(now)
    except _Missing:
        return other(now)
    return other(now) if value is None else value


# --- comparisons ---------------------------------------------------------------------------------


def _are_equal(left: Any, right: Any) -> bool:
    if isinstance(left, bool) != isinstance(right, bool):
        return False  # in JSON, true is not 1
    return bool(left == right)


def _is_in(left: Any, right: Any) -> bool:
    if isinstance(right, str):
        return isinstance(left, str) and left in right
    if isinstance(right, Mapping):
        return isinstance(left, str) and left in right
    if isinstance(right, list | tuple):
        return any(_are_equal(left, one) for one in right)
    raise InvalidInput(f'"in" needs a list, an object or a text and got {_name_type(right)}')


def _is_less(left: Any, right: Any) -> bool:
    kinds = _name_type(left), _name_type(right)
    if kinds in (("a number", "a number"), ("a text", "a text")):
        return bool(left < right)
    raise InvalidInput(f"two numbers or two texts can be ordered, not {kinds[0]} and {kinds[1]}")


_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "==": _are_equal,
    "!=": lambda left, right: not _are_equal(left, right),
    "<": _is_less,
    ">": lambda left, right: _is_less(right, left),
    "<=": lambda left, right: not _is_less(right, left),
    ">=": lambda left, right: not _is_less(left, right),
    "in": _is_in,
    "not in": lambda left, right: not _is_in(left, right),
}


# --- parsing -------------------------------------------------------------------------------------

_NAME = re.compile(r"[A-Za-z0-9_-]+")
_DIGITS = re.compile(r"-?[0-9]{1,9}")
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    | (?P<number>-?(?:0|[1-9][0-9]{0,17})(?:\.[0-9]{1,17})?(?:[eE][+-]?[0-9]{1,2})?
        (?![A-Za-z0-9_-]))
    | (?P<name>\$?[A-Za-z_][A-Za-z0-9_-]*)
    | (?P<mark>\}\}|==|!=|<=|>=|[.\[\]()|,<>])
    )""",
    re.VERBOSE,
)
_CONSTANTS: Final[Mapping[str, Any]] = {"true": True, "false": False, "null": None}
_WORDS: Final = frozenset({"and", "or", "not", "in", *_CONSTANTS})


class _Token(NamedTuple):
    kind: str
    text: str
    end: int


class _Parser:
    """Parses one template by recursive descent, from the character after its braces."""

    def __init__(self, text: str, start: int, references: set[Reference]) -> None:
        self._text = text
        self._start = start
        self._references = references
        self._depth = 0
        self.end = start
        self._token = self._scan(start)

    def parse_template(self) -> _Part:
        """Parses up to the closing braces; then `end` is behind them."""
        if self._token.text == CLOSE:
            raise self._build_error("it is empty")
        part = self._parse_or()
        if self._token.text != CLOSE or self._token.kind != "mark":
            raise self._build_error(f"unexpected {self._describe()}")
        self.end = self._token.end
        return part

    # --- tokens ----------------------------------------------------------------------------------

    def _scan(self, at: int) -> _Token:
        found = _TOKEN.match(self._text, at)
        if found is None:
            rest = self._text[at:].lstrip()
            if not rest:
                raise self._build_error(f'"{CLOSE}" is missing')
            raise self._build_error(f"unexpected {json.dumps(rest[0], ensure_ascii=False)}")
        return _Token(str(found.lastgroup), found[str(found.lastgroup)], found.end())

    def _advance(self) -> _Token:
        token = self._token
        self._token = self._scan(token.end)
        return token

    def _take(self, *marks: str) -> str:
        """Takes the next token if it is one of these marks or words; otherwise returns nothing."""
        if self._token.kind != "text" and self._token.text in marks:
            return self._advance().text
        return ""

    def _expect(self, mark: str) -> None:
        if not self._take(mark):
            raise self._build_error(f'"{mark}" is missing before {self._describe()}')

    def _describe(self) -> str:
        return "the end" if self._token.text == CLOSE else f'"{self._token.text[:40]}"'

    def _build_error(self, why: str) -> InvalidInput:
        written = self._text[self._start - len(OPEN) :].split("\n")[0]
        end = written.find(CLOSE)
        written = written[: end + len(CLOSE)] if end >= 0 else written
        return InvalidInput(f"invalid template {written[:100]!r}: {why}")

    def _nest(self, parse: Callable[[], _Part]) -> _Part:
        self._depth += 1
        if self._depth > MAX_NESTING:
            raise self._build_error("it is nested too deeply")
        part = parse()
        self._depth -= 1
        return part

    # --- expressions, the loosest first ----------------------------------------------------------

    def _parse_or(self) -> _Part:
        parts = [self._parse_and()]
        while self._take("or"):
            parts.append(self._parse_and())
        if len(parts) == 1:
            return parts[0]
        return lambda now: any(is_true(part(now)) for part in parts)

    def _parse_and(self) -> _Part:
        parts = [self._parse_not()]
        while self._take("and"):
            parts.append(self._parse_not())
        if len(parts) == 1:
            return parts[0]
        return lambda now: all(is_true(part(now)) for part in parts)

    def _parse_not(self) -> _Part:
        if self._take("not"):
            part = self._nest(self._parse_not)
            return lambda now: not is_true(part(now))
        return self._parse_comparison()

    def _parse_comparison(self) -> _Part:
        left = self._parse_filters()
        operator = self._take("==", "!=", "<=", ">=", "<", ">", "in", "not")
        if not operator:
            return left
        if operator == "not":
            self._expect("in")
            operator = "not in"
        right = self._parse_filters()
        compare = _COMPARISONS[operator]
        return lambda now: compare(left(now), right(now))

    def _parse_filters(self) -> _Part:
        part = self._parse_primary()
        count = 0
        while self._take("|"):
            count += 1
            name = self._advance().text
            if name not in FILTERS:
                raise self._build_error(
                    f'unknown filter "{name[:40]}"; known: {", ".join(FILTERS)}'
                )
            arguments = self._parse_arguments() if self._take("(") else []
            least, most, words = _ARGUMENTS.get(name, _NO_ARGUMENTS)
            if not least <= len(arguments) <= most:
                raise self._build_error(f'the filter "{name}" {words}')
            if count > MAX_NESTING:
                raise self._build_error("it has too many filters")
            part = _apply(name, part, arguments)
        return part

    def _parse_arguments(self) -> list[_Part]:
        arguments: list[_Part] = []
        while not self._take(")"):
            if arguments:
                self._expect(",")
            arguments.append(self._nest(self._parse_or))
        return arguments

    def _parse_primary(self) -> _Part:
        token = self._token
        if token.kind == "text":
            return _Constant(_decode_text(self._advance().text))
        if token.kind == "number":
            text = self._advance().text
            return _Constant(float(text) if set(text) & set(".eE") else int(text))
        if token.kind == "name" and token.text in _CONSTANTS:
            return _Constant(_CONSTANTS[self._advance().text])
        if token.kind == "name" and token.text not in _WORDS:
            return self._parse_path()
        if self._take("("):
            part = self._nest(self._parse_or)
            self._expect(")")
            return part
        raise self._build_error(f"a value is missing before {self._describe()}")

    def _parse_path(self) -> _Part:
        root = self._token.text
        if root not in ROOTS:
            raise self._build_error(
                f'unknown name "{root[:40]}"; a path begins with {", ".join(ROOTS)}'
            )
        reference = Reference(root, tuple(self._parse_steps()))
        self._references.add(reference)
        return lambda now: _read(reference, now)

    def _parse_steps(self) -> Iterator[str | int]:
        """Reads `.name` and `[0]` from behind the root, where names may begin with a digit."""
        at = self._token.end
        while True:
            mark = self._text[at : at + 1]
            found = _STEPS[mark].match(self._text, at) if mark in _STEPS else None
            if found is None:
                break
            at = found.end()
            written = found[1]
            if mark == ".":
                yield written
            elif written[0] in "\"'":
                yield _decode_text(written)
            else:
                yield int(written)
        self._token = self._scan(at)


_STEPS: Final = {
    ".": re.compile(r"\.([A-Za-z0-9_-]+)"),
    "[": re.compile(r"""\[\s*(-?[0-9]{1,9}|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')\s*\]"""),
}
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r"}


def _decode_text(written: str) -> str:
    return re.sub(
        r"\\(.)", lambda one: _ESCAPES.get(one[1], one[1]), written[1:-1], flags=re.DOTALL
    )
