"""The schedules of manifests: keeps those in the store as the manifests say."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from hashlib import sha256

from dragoman.core.errors import ConfigError, InvalidInput, Overloaded
from dragoman.core.local_agents import AgentProfile, AgentSchedule
from dragoman.core.ports import Schedule, ScheduleStore
from dragoman.core.schedule_times import Timing, find_next, parse_timing

log = logging.getLogger(__name__)

MANIFEST = "manifest"
"""The source of such a schedule, and the beginning of its id."""


def check_schedules(agent: str, schedules: Iterable[AgentSchedule]) -> None:
    """Raises `ConfigError` for a time that cannot be read."""
    for one in schedules:
        _parse(agent, one)


def _parse(agent: str, schedule: AgentSchedule) -> Timing:
    try:
        timing = parse_timing(schedule.time, schedule.zone, False)
    except InvalidInput as error:
        raise ConfigError(f'agent "{agent}": the field "schedule": {error}') from None
    if timing.once:
        raise ConfigError(
            f'agent "{agent}": the field "schedule": "{schedule.time}" runs only once; a schedule '
            'of a manifest repeats: "every 20 minutes"'
        )
    return timing


def sync_schedules(store: ScheduleStore, profiles: Iterable[AgentProfile], now: float) -> bool:
    """Adds the schedules of manifests that are new and deletes those that are gone; one that has
    not changed goes on. Returns whether something has changed."""
    wanted: dict[str, tuple[AgentProfile, AgentSchedule]] = {}
    for profile in profiles:
        for one in profile.schedules:
            wanted[_build_id(profile, one)] = profile, one
    kept = {one.id: one for one in store.load_all() if one.source == MANIFEST}
    gone = [one for id, one in kept.items() if id not in wanted]
    new = [id for id in wanted if id not in kept]
    for old in gone:
        store.delete(old.org, old.owner, old.id)
    for id in new:
        profile, schedule = wanted[id]
        try:
            timing = _parse(profile.name, schedule)
            store.add(_build(id, profile, schedule, timing, now))
        except (ConfigError, Overloaded) as error:
            log.error('a schedule of agent "%s" cannot run: %s', profile.name, error)
    return bool(gone or new)


def move_schedules(own: ScheduleStore, shared: ScheduleStore) -> None:
    """Moves the schedules that agents have created from one store to another; those of manifests
    are added by each hub."""
    there = {one.id for one in shared.load_all()}
    for schedule in own.load_all():
        try:
            if schedule.source != MANIFEST and schedule.id not in there:
                shared.add(schedule)
        except Overloaded as error:
            log.error('schedule "%s" of "%s" is left: %s', schedule.id, schedule.owner, error)
            continue
        own.delete(schedule.org, schedule.owner, schedule.id)


def _build(
    id: str, profile: AgentProfile, schedule: AgentSchedule, timing: Timing, now: float
) -> Schedule:
    return Schedule(
        id=id,
        org=profile.org,
        owner=profile.name,
        agent=profile.name,
        message=schedule.message,
        spec=timing.spec,
        zone=timing.zone,
        once=False,
        created=now,
        next_at=find_next(timing, now),
        source=MANIFEST,
    )


def _build_id(profile: AgentProfile, schedule: AgentSchedule) -> str:
    """The same for a schedule that has not changed."""
    parts = [profile.org, profile.name, schedule.time, schedule.zone, schedule.message]
    digest = sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()
    return f"{MANIFEST}-{digest[:16]}"
