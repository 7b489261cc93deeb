"""Checks the workflows of the home: files that are not in force, and programs that they start."""

from __future__ import annotations

from collections.abc import Iterator

from dragoman.cli.base.output import clean
from dragoman.cli.doctor.findings import DoctorContext, Finding


def check_workflows(found: DoctorContext) -> Iterator[Finding]:
    """Checks each file. A webhook whose secret is `exec:` is the owner's alone, and a definition
    that the API wrote before it marked them looks like the owner's."""
    from dragoman.core.errors import AuthorizationError
    from dragoman.core.secret_rules import ReferenceRules
    from dragoman.workflows.authorship import find_writer
    from dragoman.workflows.folder import FOLDER, WorkflowFolder
    from dragoman.workflows.model import MANUAL

    if found.config is None or not (found.home / FOLDER).is_dir():
        return
    names, allow = found.config.bridge.credential_env, found.config.secrets.allow
    folder = WorkflowFolder(
        found.home / FOLDER, check=ReferenceRules(names, found.home, allow).check
    )
    folder.check()
    for entry in folder.list_files():
        if entry.problem:
            fix = f"correct {folder.path / entry.file}"
            yield Finding("workflows", "warning", clean(entry.problem), fix)
    for workflow in folder.list_workflows():
        if any(trigger.kind != MANUAL for trigger in workflow.triggers):
            try:
                find_writer(workflow)
            except AuthorizationError as error:
                fix = "save it again, or remove the last line of its file if it is yours"
                yield Finding("workflows", "warning", str(error), fix)
        if any(trigger.secret.startswith("exec:") for trigger in workflow.triggers):
            said = f'workflow "{workflow.name}" reads the secret of its webhook with a program'
            fix = (
                "if you did not write it, delete it; who has written workflows by the API says: "
                "dragoman audit tail --verb workflow.write"
            )
            yield Finding("workflows", "info", said, fix)
