"""Describes an installed skill for the API and the command line."""

from __future__ import annotations

from typing import Any

from dragoman.agents.skills.installation import InstalledSkill
from dragoman.agents.skills.scan import scan_skill


def describe_skill(skill: InstalledSkill, problem: str) -> dict[str, Any]:
    """`problem` is why the hub does not use it; empty if it does."""
    manifest, record = skill.manifest, skill.record
    described: dict[str, Any] = {
        "name": skill.name,
        "state": "disabled" if problem else "used",
        "problem": problem,
        "digest": skill.digest,
        "approved": record.digest,
        "source": record.source,
        "added": record.added,
        "env": list(record.env),
        "sandbox": skill.sandbox,
    }
    if manifest is None:
        return {**described, "tools": [], "findings": []}
    return {
        **described,
        "version": manifest.version,
        "description": manifest.description,
        "author": manifest.author,
        "license": manifest.license,
        "tags": list(manifest.tags),
        "runtime": manifest.runtime,
        "requires": [*manifest.required_tools, *manifest.capabilities],
        "has_prompt": bool(manifest.prompt),
        "tools": [{"name": one.name, "description": one.description} for one in manifest.tools],
        "findings": [{"level": one.level, "words": one.words} for one in scan_skill(manifest)],
    }
