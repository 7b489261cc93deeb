"""`doctor` on the databases of the home: what was lost, and what is damaged."""

from __future__ import annotations

from collections.abc import Iterator

from dragoman.cli.doctor.findings import DoctorContext, Finding
from dragoman.core.errors import HubError

SECONDS = 2.0
"""How long each database is looked at; `--deep` takes the time it needs."""
DEEP_SECONDS = 3600.0


def check_stores(found: DoctorContext) -> Iterator[Finding]:
    if found.config is None or not found.home.is_dir():
        return
    from dragoman.app.app import STORE_FILES, advise, find_damage, find_obstacle, survey

    try:
        losses = survey(found.home, found.home / found.config.policy.folder).losses
    except HubError as error:
        yield Finding("stores", "problem", str(error), "see: dragoman docs operations")
        return
    lost = {loss.file.name for loss in losses}
    for loss in losses:
        fix = f"restore it from a backup, or: dragoman stores accept-loss {loss.name}"
        yield Finding("stores", "problem", str(loss), fix)
    whole = 0
    for name in STORE_FILES:
        path = found.home / name
        if name in lost or not path.exists():
            continue
        if obstacle := find_obstacle(path):
            said, _, fix = obstacle.partition("; ")
            yield Finding("stores", "problem", said, fix)
            continue
        damage = find_damage(path, DEEP_SECONDS if found.deep else SECONDS)
        if damage:
            yield Finding("stores", "problem", f'"{path}" is damaged ({damage})', advise(path))
        else:
            whole += 1
    if whole == sum((found.home / name).exists() for name in STORE_FILES) and whole:
        yield Finding("stores", "ok", f"{whole} databases can be read")
