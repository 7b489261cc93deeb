"""Validates arguments against the tool's schema before anything leaves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from functools import cached_property
from itertools import islice
from typing import Any
from urllib.parse import unquote

import jsonschema_rs

from dragoman.core.call import Call, Result
from dragoman.core.errors import AuthorizationError, InvalidInput
from dragoman.core.pipeline import Next
from dragoman.core.ports import Decision
from dragoman.core.structs import replace
from dragoman.core.tool import Tool, Validator, accept_anything
from dragoman.guards.argument_sample import (
    MAX_DESCRIBED,
    MAX_RELAXED,
    has_at_most,
    is_whole,
    sample_arguments,
)
from dragoman.guards.lenient_schema import (
    find_misspelt,
    name_unknown,
    quote_names,
    relax,
    strip_patterns,
)
from dragoman.guards.schema_references import REFERENCES, Unresolved, all_unresolved, resolve

MAX_SCHEMA_DEPTH = 64
MAX_SCHEMA_NODES = 20_000
MAX_EXPANDED = 250_000
"""Limit with every reference expanded: a short schema can expand to 2^60 parts."""
MAX_EXPLAINED = 1_000
"""Above this size only the outline is explained: explaining costs a thousand times more than
checking."""
MISMATCH = "they do not match the schema"
MAX_PROBLEMS = 10
"""Problems of arguments that are named."""

LENIENT, STRICT, UNCHECKED = "lenient", "strict", "off"
"""What is refused: what no server could accept, what violates the schema, nothing."""
_REFERENCES = frozenset(REFERENCES)


class Validate:
    def __init__(self, reads_arguments: Callable[[Tool], bool] = lambda tool: True) -> None:
        """`reads_arguments` says whether policies depend on argument values. Then arguments must
        match the schema exactly: a policy about `force=true` would not see a server accept "yes"
        for it."""
        self._reads_arguments = reads_arguments

    def __call__(self, next: Next, call: Call) -> Awaitable[Result]:
        if call.task is not None and call.sends_nothing:
            return next(call)  # they were valid when they were sent
        check = call.tool.validate
        if isinstance(check, PartialCheck):
            self._refuse_unchecked(call, check)
            check = check.check
        problem = check(call.arguments)
        if problem is not None:
            self._tolerate(call, check, problem)
        return next(call)  # it has nothing to do on the way back

    def _refuse_unchecked(self, call: Call, check: PartialCheck) -> None:
        """Raises if policies have read an argument that the hub could not check."""
        names = check.find_unchecked(call.arguments)
        if not names or not self._reads_arguments(call.tool):
            return
        why = (
            f"policies read its arguments, and the hub cannot check {quote_names(names)}: "
            f"the tool's schema refers to {quote_names(check.unresolved.references)}, which the "
            "hub does not fetch"
        )
        decision = call.notes.decision or Decision(False)
        call.notes.decision = replace(decision, allowed=False, errors=(why,))
        raise AuthorizationError(
            f'"{call.tool.name}" was refused: {why}. The server should offer a schema with all of '
            'its definitions. With check_arguments = "off" for the server, policies decide '
            "by the values as they are sent, whatever the server takes them for"
        )

    def _tolerate(self, call: Call, check: Validator, problem: str) -> None:
        if isinstance(check, LenientCheck):
            if self._reads_arguments(call.tool):
                problem += " (policies read arguments here, so they must match the schema exactly)"
            else:
                problem = check.find_problem(call.arguments, problem)
        if problem:
            raise InvalidInput(f'invalid arguments for "{call.tool.name}": {problem}')


class SchemaCheck:
    """Validates arguments against a schema."""

    def __init__(self, schema: Mapping[str, Any], size: int) -> None:
        self._schema = schema
        self._size = size
        self._validator, self._read = _compile(schema)
        self._explainer = self._validator
        if size > MAX_EXPLAINED:
            self._explainer = _build_validator(_outline(self._read))

    def __call__(self, arguments: Mapping[str, Any]) -> str | None:
        if self._validator.is_valid(arguments):
            return None
        return self._explain(arguments)

    def _explain(
        self, arguments: Mapping[str, Any], places: Collection[tuple[Any, ...]] = ()
    ) -> str:
        """Names what is wrong with the arguments, if possible only at `places`: all of it if they
        are small for the schema, else the missing ones and one error of a sample."""
        errors: list[jsonschema_rs.ValidationError] = []
        if self._is_small(arguments, MAX_DESCRIBED):
            # The engine describes all errors before it returns the first one.
            errors = list(self._explainer.iter_errors(arguments))
            errors = [one for one in errors if _is_at(one, places)] or errors[:1]
        if errors:
            problems = [_describe(one) for one in islice(errors, MAX_PROBLEMS + 1)]
        else:
            error = self._find_error(arguments, places)
            problems = [*self._list_missing(arguments), _describe(error) if error else MISMATCH]
        problems = list(dict.fromkeys(problems))
        if len(problems) > 1 and problems[-1] == MISMATCH:
            problems.pop()
        if len(problems) > MAX_PROBLEMS:
            problems[MAX_PROBLEMS:] = ["and more"]
        if self._lacks_arguments(arguments):
            schema = self._schema
            more = find_misspelt(schema, arguments) or name_unknown(schema, arguments)
            problems += [more] if more else []
        return "; ".join(problems)

    def _find_error(
        self, arguments: Mapping[str, Any], places: Collection[tuple[Any, ...]]
    ) -> jsonschema_rs.ValidationError | None:
        """Finds one error of a sample of the arguments, if possible one at `places`."""
        sample = sample_arguments(arguments, self._size)
        try:
            self._explainer.validate(sample)
        except jsonschema_rs.ValidationError as error:
            if not _is_at(error, places):
                errors = self._explainer.iter_errors(sample)
                error = next((one for one in errors if _is_at(one, places)), error)
            if is_whole(sample, arguments, error.instance_path) or isinstance(
                error.kind, _UNRELATED_TO_SIZE
            ):
                return error
        return None

    def _is_small(self, arguments: Mapping[str, Any], described: int) -> bool:
        """Whether describing all errors of the arguments takes a short time."""
        room = described // self._weight
        return room > 0 and has_at_most(arguments, room)

    @cached_property
    def _weight(self) -> int:
        """The size of the schema for the description of all errors: each name in `required` can be
        one, and the values of an `enum` are a part of it."""
        return self._size * (1 + _find_longest_list(self._read) // 16)

    def _list_missing(self, arguments: Mapping[str, Any]) -> list[str]:
        missing = (one for one in self._required if one not in arguments)
        return [_short(f'"{one}" is a required property') for one in islice(missing, MAX_PROBLEMS)]

    def _lacks_arguments(self, arguments: Mapping[str, Any]) -> bool:
        return any(one not in arguments for one in self._required)

    @property
    def _required(self) -> list[str]:
        required = self._read.get("required")
        return required if isinstance(required, list) else []


def _describe(error: jsonschema_rs.ValidationError) -> str:
    path = "/".join(str(step) for step in error.instance_path)
    return _short(f"{path}: {error.message}" if path else error.message)


def _is_at(error: jsonschema_rs.ValidationError, places: Collection[tuple[Any, ...]]) -> bool:
    """Whether the error is at one of the places, or within one below the outermost; with no places,
    it is."""
    path = tuple(error.instance_path)
    return not places or any(
        path == place or (place and path[: len(place)] == place) for place in places
    )


_UNRELATED_TO_SIZE = (
    jsonschema_rs.ValidationErrorKind.Type,
    jsonschema_rs.ValidationErrorKind.AdditionalProperties,
    jsonschema_rs.ValidationErrorKind.FalseSchema,
)
"""Errors that a value has whether or not it was cut."""


class LenientCheck(SchemaCheck):
    """Like `SchemaCheck`, and tells whether a server that converts arguments could accept them."""

    _relaxed: Any = None
    """The relaxed validator, compiled on first use."""

    def find_problem(self, arguments: Mapping[str, Any], problem: str) -> str:
        """What is wrong with arguments that violate the schema (`problem`); empty if a server may
        convert them."""
        if self._schema.get("additionalProperties") is False and (
            misspelt := find_misspelt(self._schema, arguments)
        ):
            return misspelt
        try:
            if self._relaxed is None:
                self._relaxed = _compile(relax(self._read))[0]
            if self._relaxed.is_valid(arguments):
                return ""
            if self._is_small(arguments, MAX_RELAXED):
                errors = self._relaxed.iter_errors(arguments)
                return self._explain(arguments, {tuple(one.instance_path) for one in errors})
            if self._explainer is self._validator:
                sample = sample_arguments(arguments, self._size, is_relaxed=True)
                self._relaxed.validate(sample)
        except jsonschema_rs.ValidationError as error:
            return self._explain(arguments, {tuple(error.instance_path)})
        return problem


class PartialCheck:
    """Validates arguments against the readable part of a schema."""

    def __init__(self, check: SchemaCheck, unresolved: Unresolved, named: Any) -> None:
        self.check = check
        self.unresolved = unresolved
        self._named = named if isinstance(named, dict) else {}

    def __call__(self, arguments: Mapping[str, Any]) -> str | None:
        return self.check(arguments)

    def find_unchecked(self, arguments: Mapping[str, Any]) -> list[str]:
        return self.unresolved.find(arguments, self._named)


def compile_schema(schema: Mapping[str, Any], check: str = STRICT) -> Validator:
    """Compiles a schema, and fetches nothing. Raises ValueError for an invalid one."""
    refers = _measure(schema)
    if check == UNCHECKED:
        return accept_anything
    if not schema.keys() - {"type"} and schema.get("type", "object") == "object":
        return accept_anything
    kind = LenientCheck if check == LENIENT else SchemaCheck
    readable, unresolved = resolve(schema) if refers else (schema, None)
    size = _expanded_size(readable)
    try:
        found = kind(readable, size)
    except jsonschema_rs.ValidationError as error:
        if not isinstance(error.kind, jsonschema_rs.ValidationErrorKind.Referencing):
            raise ValueError(_short(error.message)) from None
        # A dialect that this engine does not know: only the server can validate.
        found, unresolved = kind({"type": "object"}, 1), all_unresolved(schema)
    if unresolved is None:
        return found
    return PartialCheck(found, unresolved, readable.get("properties"))


def _compile(schema: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    """Returns a validator and the schema as far as it could be read: patterns that this regex
    engine does not know are left to the server."""
    try:
        return _build_validator(dict(schema)), schema
    except jsonschema_rs.ValidationError as error:
        if isinstance(error.kind, jsonschema_rs.ValidationErrorKind.Referencing):
            raise
        readable = strip_patterns(schema, _is_regex)
        return _build_validator(readable), readable


def _build_validator(schema: Any) -> Any:
    """Patterns are of servers and texts of callers: only an engine whose time is linear in both
    may bring them together. It knows neither look-around nor back-references."""
    return jsonschema_rs.validator_for(schema, offline=True, pattern_options=_LINEAR)


_LINEAR = jsonschema_rs.RegexOptions()


def _is_regex(pattern: str) -> bool:
    try:
        _build_validator({"pattern": pattern})
    except jsonschema_rs.ValidationError:
        return False
    return True


def _measure(schema: Any) -> bool:
    """Refuses a schema that is too large or too deep. Returns whether it may contain references."""
    level, nodes, refers = [schema], 0, False
    for _ in range(MAX_SCHEMA_DEPTH):
        inner: list[Any] = []
        for item in level:
            values: Iterable[Any] = item
            if isinstance(item, dict):
                refers = refers or not _REFERENCES.isdisjoint(item)
                values = item.values()
            inner.extend(value for value in values if isinstance(value, dict | list))
        nodes += len(inner)
        if nodes > MAX_SCHEMA_NODES:
            raise ValueError(f"the schema has more than {MAX_SCHEMA_NODES} parts")
        if not inner:
            return refers
        level = inner
    raise ValueError(f"the schema is nested deeper than {MAX_SCHEMA_DEPTH}")


def _expanded_size(schema: Mapping[str, Any]) -> int:
    """Counts the parts of a schema with references expanded; a recursive one has very many."""
    sizes: dict[int, int] = {}
    open_: set[int] = set()

    def size(node: Any) -> int:
        key = id(node)
        if key in open_:
            return MAX_EXPLAINED  # recursive: the engine caches results, but not explanations
        if key not in sizes:
            open_.add(key)
            values = node.values() if isinstance(node, dict) else node
            total = 1 + sum(size(value) for value in values if isinstance(value, dict | list))
            if isinstance(node, dict):
                total += sum(size(target) for target in _targets(node, schema))
            open_.remove(key)
            if total > MAX_EXPANDED:
                raise ValueError(
                    f"it expands to more than {MAX_EXPANDED} parts with its references"
                )
            sizes[key] = total
        return sizes[key]

    try:
        return size(schema)
    except RecursionError:
        raise ValueError("its references are nested too deeply") from None


def _find_longest_list(schema: Any) -> int:
    longest, left = 0, [schema]
    while left:
        node = left.pop()
        if isinstance(node, list):
            longest = max(longest, len(node))
        values = node.values() if isinstance(node, dict) else node
        left += (value for value in values if isinstance(value, dict | list))
    return longest


def _targets(node: Mapping[str, Any], root: Mapping[str, Any]) -> list[Any]:
    """The targets of the references of `node`."""
    found: list[Any] = []
    for word in REFERENCES:
        reference = node.get(word)
        if not isinstance(reference, str) or not reference.startswith("#"):
            continue
        target: Any = root
        for step in reference.split("/")[1:]:
            step = unquote(step).replace("~1", "/").replace("~0", "~")
            if isinstance(target, list) and step.isdigit() and int(step) < len(target):
                target = target[int(step)]
            else:
                target = target.get(step) if isinstance(target, dict) else None
        if isinstance(target, dict | list):
            found.append(target)
    return found


def _outline(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The outermost constraints, which nearly all mistakes concern."""
    outline: dict[str, Any] = {
        word: schema[word]
        for word in ("type", "required", "additionalProperties")
        if word in schema and (word != "additionalProperties" or schema[word] is False)
    }
    properties = schema.get("properties")
    if isinstance(properties, dict):
        outline["properties"] = {
            name: {"type": inner["type"]} if isinstance(inner, dict) and "type" in inner else {}
            for name, inner in properties.items()
        }
    if "patternProperties" in schema:
        outline.pop("additionalProperties", None)
    return outline


def _short(text: str) -> str:
    return text if len(text) <= 300 else text[:297] + "..."
