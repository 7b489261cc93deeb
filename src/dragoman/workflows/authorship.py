"""Who wrote a definition: the owner of the hub, or a caller of the API.

The hub ends what others than the owner write with a comment, which stays with the text wherever it
goes: in the folder, in the rows of its runs, in a backup. A file without it is the owner's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from dragoman.core.errors import InvalidInput
from dragoman.core.secret_rules import Author, SecretUse
from dragoman.workflows.model import Workflow
from dragoman.workflows.yaml_reader import Problem

MARK = "# Written by the API: [secrets] allow says what it may read."
_MARKED_LINE = f"{MARK} Remove this line if it is yours."

CheckReference = Callable[[str, SecretUse], None]
"""Raises `InvalidInput` for a reference that its author may not use."""


def is_marked(source: str) -> bool:
    """Whether the hub has marked the definition as one of the API."""
    return any(line.strip().startswith(MARK) for line in source.splitlines())


def set_author(source: str, author: Author) -> str:
    """Marks a definition that others than the owner wrote. The mark is its last line, so that the
    numbers of the other lines stay."""
    lines = source.splitlines(keepends=True)
    kept = "".join(line for line in lines if not line.strip().startswith(MARK))
    if author is Author.OWNER:
        return kept
    return f"{kept}{'' if not kept or kept.endswith(chr(10)) else chr(10)}{_MARKED_LINE}\n"


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
