"""Who wrote a definition: the owner of the hub, or a caller of the API.

The hub ends what others than the owner write with a comment, which stays with the text wherever it
goes: in the folder, in the rows of its runs, in a backup. A file without it is the owner's. The
comment says by whom it was written: what a trigger starts acts for its author.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from dragoman.core.errors import AuthorizationError, InvalidInput
from dragoman.core.principal import Principal
from dragoman.core.runs import DOOR, RunPrincipal, record_principal
from dragoman.core.secret_rules import Author, SecretUse
from dragoman.core.structs import asdict, replace
from dragoman.workflows.model import Workflow
from dragoman.workflows.yaml_reader import Problem

MARK = "# Written by the API: [secrets] allow says what it may read."
_MARKED_LINE = f"{MARK} Remove this line if it is yours."
_WRITER = " Author: "
_LISTS = ("roles", "scopes")

CheckReference = Callable[[str, SecretUse], None]
"""Raises `InvalidInput` for a reference that its author may not use."""


def is_marked(source: str) -> bool:
    """Whether the hub has marked the definition as one of the API."""
    return any(line.strip().startswith(MARK) for line in source.splitlines())


def set_author(source: str, author: Author, writer: Principal | None = None) -> str:
    """Marks a definition that others than the owner wrote. The mark is its last line, so that the
    numbers of the other lines stay. `writer` is the caller of the API."""
    lines = source.splitlines(keepends=True)
    kept = "".join(line for line in lines if not line.strip().startswith(MARK))
    if author is Author.OWNER:
        return kept
    line = _MARKED_LINE if writer is None else f"{_MARKED_LINE}{_WRITER}{_render_writer(writer)}"
    return f"{kept}{'' if not kept or kept.endswith(chr(10)) else chr(10)}{line}\n"


def _render_writer(writer: Principal) -> str:
    """Renders the principal with the rights that it has now, as ASCII without line breaks. The id
    of its session or token, which ends long before the definition, stays out."""
    given = asdict(replace(record_principal(writer, DOOR), credential=""))
    return json.dumps({name: value for name, value in given.items() if value})


def read_writer(source: str) -> RunPrincipal | None:
    """Reads from the mark by whom a definition was written; None if it does not say so."""
    lines = [one.strip() for one in source.splitlines()]
    mark = next((one for one in reversed(lines) if one.startswith(MARK)), "")
    try:
        given = json.loads(mark.partition(_WRITER)[2])
        known: dict[str, Any] = {
            name: tuple(map(str, value)) if name in _LISTS else str(value)
            for name, value in given.items()
        }
        return RunPrincipal(**known)
    except (ValueError, TypeError, AttributeError):
        return None


def find_writer(workflow: Workflow) -> RunPrincipal | None:
    """Finds the caller of the API that wrote a definition; None for one of the owner. Raises
    `AuthorizationError` if it is unknown."""
    if workflow.author is Author.OWNER:
        return None
    if workflow.writer is None:
        raise AuthorizationError(
            f'the workflow "{workflow.name}" was not started: it was written by the API, and '
            "triggers act for its author, which its file does not name. Save it again, or remove "
            "the last line of the file if it is yours"
        )
    return workflow.writer


def build_use(workflow: Workflow) -> SecretUse:
    return SecretUse(workflow.author, f'workflow "{workflow.name}"')


def find_refused(workflow: Workflow, check: CheckReference) -> Iterator[Problem]:
    """Lists the references to secrets that the author of a definition may not use."""
    use = build_use(workflow)
    references = [(trigger.line, trigger.secret) for trigger in workflow.triggers if trigger.secret]
    references += [(1, f"env:{name}") for name in workflow.env]
    for line, reference in references:
        try:
            check(reference, use)
        except InvalidInput as error:
            yield Problem(line, str(error))
