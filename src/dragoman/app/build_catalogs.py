"""Builds the catalogs, and the pins that review what enters them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dragoman.a2a.remote.registered_agents import RegisteredAgents
from dragoman.agents.manifest_agents import LocalAgent
from dragoman.agents.skills.skill_book import SkillTable
from dragoman.app.build_stores import Stores
from dragoman.app.config_watch import LiveConfig
from dragoman.app.pin_reviews import PinReviews
from dragoman.app.targets import TargetSettings
from dragoman.core.bus import Bus
from dragoman.core.catalog import Catalog, build_catalogs
from dragoman.core.events import PinAdded, PinHeld
from dragoman.core.name_claims import NameClaims
from dragoman.core.tool import INSTRUCTIONS, TOOL
from dragoman.pins.approvals import PinApprovals
from dragoman.pins.review import PinReviewer


@dataclass(frozen=True, slots=True)
class Catalogs:
    offered: Mapping[str, Catalog]
    """One of every kind that targets offer."""
    callable: Mapping[str, Catalog]
    """Those of what can be called: all but the instructions."""
    pins: PinReviewer
    reviews: PinReviews
    approvals: PinApprovals

    @property
    def tools(self) -> Catalog:
        return self.offered[TOOL]


def build_pinned_catalogs(
    live: LiveConfig,
    stores: Stores,
    bus: Bus,
    registered: RegisteredAgents,
    local: Mapping[str, LocalAgent],
    skills: SkillTable,
    targets: Iterable[str],
) -> Catalogs:
    """`targets` are the names of all servers, agents and skills of the home: others lose their
    claims."""
    settings = TargetSettings(live, registered, local, skills)
    pins = PinReviewer(
        stores.pins,
        settings.find_pin_mode,
        told=lambda target, name, why: bus.emit(PinHeld(target, name, why)),
        holds_additions=settings.quarantines_additions,
        told_added=lambda target, name, why: bus.emit(PinAdded(target, name, why)),
    )
    claims = NameClaims(stores.pins, settings.list_namespaces)
    claims.keep_only(set(targets))
    offered = build_catalogs(pins.review, claims, pins.review_in_turns)
    reviews = PinReviews(pins, claims, offered, registered, stores.audit)
    approvals = PinApprovals(pins, reviews.apply_decision, reviews.record, reviews.release_names)
    callable = {kind: one for kind, one in offered.items() if kind != INSTRUCTIONS}
    return Catalogs(offered, callable, pins, reviews, approvals)
