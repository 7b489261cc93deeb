"""Resolves the references of a schema within its document. Pure; fetches nothing.

A schema may refer to a definition by place (`#/$defs/x`), by a name inside the document (`$id`,
`$anchor`), or to another document. `resolve` rewrites the first two as places and removes what
leads elsewhere, so that the rest can be compiled and measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

Place = tuple[str, ...]
"""The steps of a JSON pointer."""

REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
DATA = frozenset(("const", "enum", "default", "examples", "example"))
NAMED = frozenset(
    ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
)
APPLIED = frozenset(
    (*NAMED, "additionalProperties", "propertyNames", "items", "prefixItems", "additionalItems",
     "unevaluatedProperties", "unevaluatedItems", "contains", "allOf", "anyOf", "oneOf", "not",
     "if", "then", "else")
) - {"$defs", "definitions"}  # fmt: skip
"""Keywords whose schemas apply where they stand, rather than where something refers to them."""
OLD_DRAFTS = ("draft-03", "draft-04", "draft-06", "draft-07")
"""In these drafts a reference overrides its siblings."""
MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class Unresolved:
    """The parts of a tool's schema that the hub cannot read."""

    references: tuple[str, ...]
    arguments: frozenset[str]
    """The arguments whose own schema has such a part."""
    others: bool
    """Whether arguments that the schema does not name may have one."""
    all: bool
    """Whether such a part concerns the arguments as a whole."""

    def find(self, arguments: Mapping[str, Any], named: Mapping[str, Any]) -> list[str]:
        """The `arguments` that are not fully checked; `named` are the schema's properties."""
        return [
            name
            for name in arguments
            if self.all or name in self.arguments or (self.others and name not in named)
        ]


@dataclass(slots=True)
class _Node:
    schema: Mapping[str, Any]
    base: str
    """The address of its document."""
    parts: list[tuple[str, Place]]
    """The schemas that it applies in place, with their keywords."""
    references: dict[str, Place | None]
    """The targets of its references; None for another document."""


def resolve(schema: Mapping[str, Any]) -> tuple[Mapping[str, Any], Unresolved | None]:
    """Rewrites each reference as a place, and returns what was removed. Whatever is valid under
    `schema` is valid under the result."""
    document = _Document(schema)
    if not document.has_names and not document.unresolved:
        return schema, None
    return document.rewrite(schema), document.describe()


def all_unresolved(schema: Mapping[str, Any]) -> Unresolved:
    """For a schema that cannot be read at all."""
    return Unresolved((str(schema.get("$schema", "itself")),), frozenset(), True, True)


class _Document:
    def __init__(self, schema: Mapping[str, Any]) -> None:
        dialect = str(schema.get("$schema", ""))
        self._stands_alone = any(draft in dialect for draft in OLD_DRAFTS)
        self._id = "id" if "draft-04" in dialect or "draft-03" in dialect else "$id"
        self._places: set[Place] = set()
        self._nodes: dict[Place, _Node] = {}
        """The schemas at these places, without `true` and `false`."""
        self._named: dict[str, Place | None] = {}
        """Embedded documents and anchors by address; None if ambiguous."""
        self._documents = 1
        self.has_names = False
        """Whether a reference is not a place in this document."""
        self._collect(schema, (), "")
        for node in self._nodes.values():
            self._refer(node)
        self.unresolved = [
            node.schema[word]
            for node in self._nodes.values()
            for word, place in node.references.items()
            if place is None
        ]
        self._marked = self._mark()

    # --- reading -------------------------------------------------------------------------------

    def _collect(self, schema: Any, place: Place, base: str) -> None:
        if isinstance(schema, bool | dict):
            self._places.add(place)
        if not isinstance(schema, dict):
            return
        base = self._name(schema, place, base)
        node = self._nodes[place] = _Node(schema, base, [], {})
        for word, at, part in _parts(schema):
            if word in APPLIED:
                node.parts.append((word, place + at))
            self._collect(part, place + at, base)

    def _name(self, schema: Mapping[str, Any], place: Place, base: str) -> str:
        """Records the schema's own names, and returns the address of its document."""
        id = schema.get(self._id)
        if isinstance(id, str):
            address = _join(base, id)
            if not id.startswith("#"):  # an anchor, in older drafts
                base = urldefrag(address).url
                self._documents += bool(place)
            self._add_name(address.removesuffix("#"), place)
        if not place and base not in self._named:
            self._add_name(base, place)
        for word in ("$anchor", "$dynamicAnchor"):
            if isinstance(anchor := schema.get(word), str):
                self._add_name(f"{base}#{anchor}", place)
        return base

    def _add_name(self, address: str, place: Place) -> None:
        self._named[address] = None if address in self._named else place

    def _refer(self, node: _Node) -> None:
        for word in REFERENCES:
            reference = node.schema.get(word)
            if not isinstance(reference, str):
                continue
            place = self._find(_join(node.base, reference))
            if word != "$ref" and self._documents > 1:
                place = None  # a dynamic reference: its target depends on the path that leads to it
            if self._documents > 1 or reference[:2] not in ("#", "#/"):
                self.has_names = True
            node.references[word] = place

    def _find(self, address: str) -> Place | None:
        document, _, fragment = address.partition("#")
        if fragment and not fragment.startswith("/"):
            return self._named.get(address)
        place = self._named.get(document)
        if place is not None:
            steps = unquote(fragment).split("/")[1:]
            place += tuple(step.replace("~1", "/").replace("~0", "~") for step in steps)
        return place if place in self._places else None

    def _mark(self) -> set[Place]:
        """The schemas that cannot be fully read, directly or through references."""
        above: dict[Place, list[Place]] = {}
        marked: set[Place] = set()
        for place, node in self._nodes.items():
            below = [part for _, part in node.parts]
            below += [found for found in node.references.values() if found is not None]
            for one in below:
                above.setdefault(one, []).append(place)
            if None in node.references.values():
                marked.add(place)
        left = list(marked)
        while left:
            for place in above.get(left.pop(), ()):
                if place not in marked:
                    marked.add(place)
                    left.append(place)
        return marked

    # --- rewriting -----------------------------------------------------------------------------

    def rewrite(self, schema: Any, place: Place = ()) -> Any:
        node = self._nodes.get(place)
        if node is None:  # true and false are schemas, too
            return schema
        names = (self._id, "$anchor", "$dynamicAnchor")
        written = {
            word: self._rewrite_value(word, value, (*place, word))
            for word, value in node.schema.items()
            if word not in names or not isinstance(value, str)
        }
        for word, found in node.references.items():
            if found is not None:
                written[word] = _pointer(found)
            else:
                del written[word]
                if self._stands_alone:
                    written = {w: v for w, v in written.items() if w not in _CHECKS}
        if place in self._marked:
            self._loosen(written, place)
        return written

    def _rewrite_value(self, word: str, value: Any, place: Place) -> Any:
        if word in DATA:
            return value
        if isinstance(value, list):
            return [self.rewrite(one, (*place, str(n))) for n, one in enumerate(value)]
        if word in NAMED and isinstance(value, dict):
            return {name: self.rewrite(one, (*place, name)) for name, one in value.items()}
        return self.rewrite(value, place)

    def _loosen(self, written: dict[str, Any], place: Place) -> None:
        """Removes what would refuse more once a part below accepts everything."""
        words = {word for word, part in self._nodes[place].parts if part in self._marked}
        if "not" in words:
            written.pop("not", None)
        if "if" in words:
            for word in ("if", "then", "else"):
                written.pop(word, None)
        if "contains" in words:
            written.pop("maxContains", None)
        if "oneOf" in words and "oneOf" in written:  # several branches may match now
            written["allOf"] = [*written.get("allOf", ()), {"anyOf": written.pop("oneOf")}]
        for word in ("unevaluatedProperties", "unevaluatedItems"):
            written.pop(word, None)

    def describe(self) -> Unresolved | None:
        if () not in self._marked:
            return None
        root = self._nodes[()]
        marked = [(word, part) for word, part in root.parts if part in self._marked]
        return Unresolved(
            references=tuple(dict.fromkeys(self.unresolved))[:MAX_NAMED],
            arguments=frozenset(part[1] for word, part in marked if word == "properties"),
            others=any(word == "additionalProperties" for word, _ in marked),
            all=any(word not in ("properties", "additionalProperties") for word, _ in marked)
            or any(found is None or found in self._marked for found in root.references.values()),
        )


_CHECKS = APPLIED | frozenset({
    "type", "required", "minProperties", "maxProperties", "minLength", "maxLength", "pattern",
    "format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
    "minItems", "maxItems", "uniqueItems", "enum", "const", "dependentRequired",
})  # fmt: skip


def _parts(schema: Mapping[str, Any]) -> Iterator[tuple[str, Place, Any]]:
    """The subschemas, with keyword and steps. An unknown keyword may hold definitions."""
    for word, value in schema.items():
        if word in DATA:
            continue
        if isinstance(value, list):
            yield from ((word, (word, str(n)), one) for n, one in enumerate(value))
        elif word in NAMED and isinstance(value, dict):
            yield from ((word, (word, name), one) for name, one in value.items())
        elif isinstance(value, dict | bool):
            yield word, (word,), value


def _join(base: str, reference: str) -> str:
    if reference.startswith("#"):
        return base + reference
    try:
        return urljoin(base, reference)
    except ValueError:
        return reference


def _pointer(place: Place) -> str:
    return "#" + "".join(
        "/" + step.replace("~", "~0").replace("/", "~1").replace("%", "%25") for step in place
    )
