"""Describes workflows as JSON, for the API and the command line. The definition shows references of
secrets, never secrets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dragoman.core.logs import render_time
from dragoman.core.triggers import ScheduleState
from dragoman.workflows.folder import DefinitionFile
from dragoman.workflows.graph import list_nodes
from dragoman.workflows.inputs import build_input_schema
from dragoman.workflows.model import EVENT, SCHEDULE, Trigger, Workflow
from dragoman.workflows.yaml_reader import read_yaml

ACTIVE, INVALID = "active", "invalid"


FindState = Callable[[str, Trigger], ScheduleState | None]
"""Finds how far a schedule of a workflow is."""


def describe_file(
    entry: DefinitionFile, find_state: FindState = lambda name, trigger: None
) -> dict[str, Any]:
    """Describes a file of the folder: its workflow in a few words, and what is wrong with it."""
    workflow = entry.workflow
    triggers = workflow.triggers if workflow is not None else ()
    return {
        "name": entry.name,
        "description": workflow.description if workflow else "",
        "digest": workflow.digest if workflow else "",
        "file": entry.file,
        "triggers": [describe_trigger(one, find_state(entry.name, one)) for one in triggers],
        "steps": len(list_nodes(workflow)) if workflow else 0,
        "expose": workflow.expose if workflow else False,
        "state": INVALID if entry.problem else ACTIVE,
        "problem": entry.problem,
    }


def describe_workflow(workflow: Workflow) -> dict[str, Any]:
    """Describes what a workflow needs and does, with its source."""
    return {
        "name": workflow.name,
        "description": workflow.description,
        "digest": workflow.digest,
        "triggers": [describe_trigger(one) for one in workflow.triggers],
        "expose": workflow.expose,
        "inputs": None if workflow.inputs is None else build_input_schema(workflow),
        "agents": dict(workflow.agents),
        "missingAgents": list(workflow.missing_agents),
        "env": list(workflow.env),
        "definition": read_yaml(workflow.source).value,
        "source": workflow.source,
        "graph": {"nodes": list_nodes(workflow)},
    }


def describe_trigger(trigger: Trigger, state: ScheduleState | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"kind": trigger.kind}
    if trigger.kind == SCHEDULE:
        found |= {
            "schedule": trigger.schedule, "zone": trigger.zone, "catchUp": trigger.catch_up,
        }  # fmt: skip
    elif trigger.kind == EVENT:
        found |= {"event": trigger.event, "match": dict(trigger.match)}
    if state is not None:
        found |= {
            "nextAt": render_time(state.next_at),
            "lastAt": render_time(state.last_at) if state.last_at else None,
            "missed": state.missed,
            "problem": state.outcome,
        }
    return found
