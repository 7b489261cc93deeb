"""Shows the taint rules and labels, and removes labels of stored data on request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dragoman.core.admin_audit import record_action
from dragoman.core.errors import NotFound
from dragoman.core.hub import Hub
from dragoman.core.ports import AuditLog
from dragoman.core.principal import Principal
from dragoman.core.taint import LabelStore
from dragoman.core.tool_filter import EVERYTHING
from dragoman.guards.tool_flows import ToolFlowTable, list_rules


@dataclass(frozen=True, slots=True)
class TaintAdmin:
    """Implements `web.api_taint.TaintAdministration`."""

    _hub: Hub
    _flows: ToolFlowTable
    _labels: LabelStore
    _audit: AuditLog

    def describe_rules(self) -> dict[str, Any]:
        settings = self._flows.settings
        return {
            "clients": settings.clients,
            "unannotated": settings.unannotated,
            "detect": list(settings.detect),
            "rules": [
                {"label": label, "sink": sink, "mode": mode}
                for label, sink, mode in list_rules(settings)
            ],
        }

    def describe_tools(self, principal: Principal) -> list[dict[str, Any]]:
        found = []
        for tool in self._hub.list_tools(principal, EVERYTHING, door="api"):
            flows = self._flows.find(tool)
            rules = [
                {"label": label, "sink": rule.sink, "mode": rule.mode}
                for label, rule in flows.rules.items()
                if rule.mode != "observe"
            ]
            found.append(
                {
                    "name": tool.name,
                    "sources": dict(flows.sources),
                    "sinks": dict(flows.sinks),
                    "rules": rules,
                }
            )
        return found

    def list_stored(self, prefix: str, most: int) -> list[dict[str, Any]]:
        return self._labels.list_labels(prefix, most)

    def declassify(self, key: str, label: str | None, why: str, by: Principal) -> list[str]:
        with record_action(self._audit, "taint.declassify", f"{key}: {why}", by):
            removed = self._labels.remove_labels(key, label)
        if not removed:
            of = f' with the label "{label}"' if label else ""
            raise NotFound(f'there is no stored data "{key[:200]}"{of}; see: dragoman taint stored')
        return removed
