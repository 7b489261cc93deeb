"""The stages of the pipeline, one per file, and their order."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from dragoman.core.bus import Bus
    from dragoman.core.call_chains import CallChains
    from dragoman.core.kept_results import KeptResults
    from dragoman.core.logins import LoginDesk
    from dragoman.core.pipeline import Stage
    from dragoman.core.ports import AuditLog, RateLimiter
    from dragoman.core.question_handles import QuestionHandles
    from dragoman.guards.carried_labels import CarriedLabels
    from dragoman.guards.config import Limits
    from dragoman.guards.grants import GrantedAuthorizer
    from dragoman.guards.held_calls import HeldCalls
    from dragoman.guards.tool_flows import ToolFlowTable


def build_stages(
    audit: AuditLog,
    bus: Bus,
    limits: Limits,
    handles: QuestionHandles,
    chains: CallChains,
    authorizer: GrantedAuthorizer,
    kept: KeptResults,
    limiter: RateLimiter,
    flows: ToolFlowTable,
    carried: CarriedLabels,
    logins: LoginDesk | None = None,
    find_held: Callable[[], HeldCalls] | None = None,
) -> list[Stage]:
    """Without `find_held`, calls that need an approval are refused."""
    # Imported here: reading `[limits]` alone must not load a schema engine.
    from dragoman.guards.announce import Announce
    from dragoman.guards.approval import ApprovalGuard
    from dragoman.guards.audit import Audit
    from dragoman.guards.authorize import Authorize
    from dragoman.guards.grants import Grants
    from dragoman.guards.logins import LoginQuestions
    from dragoman.guards.loop import LoopGuard
    from dragoman.guards.overload import Overload
    from dragoman.guards.questions import Questions
    from dragoman.guards.rate import RateLimit
    from dragoman.guards.recursion import Recursion
    from dragoman.guards.taint import CollectLabels, Taint
    from dragoman.guards.timeout import Timeout
    from dragoman.guards.truncate import Truncate
    from dragoman.guards.validate import Validate

    return [
        Audit(audit),  # one record of every call, refused and unknown ones too
        Announce(bus, limits.calls_in_flight),  # pre-verb, then post-verb; gates may refuse
        Overload(limits.overload_delay_secs),  # costs least, and charges nothing
        RateLimit(limiter),  # before what costs more than a lookup
        Recursion(chains),  # cheap to check: a loop must not cost a decision
        LoopGuard(limits.loop),  # nor must a call that repeats without progress
        CollectLabels(chains, flows, carried),  # which the policies read
        Grants(authorizer),  # an agent may do what it was granted, and no more than its callers
        Authorize(authorizer),  # the policies; what they do not permit goes no further
        Validate(authorizer.reads_arguments),  # against the tool's schema, offline
        # Before anything leaves; the result may be a question, also that for a login.
        Questions(handles, LoginQuestions(logins, limits.tool_timeout_secs)),
        Truncate(limits, kept),  # on the way back
        # After the policies, and sees results whole.
        Taint(chains, flows, carried, find_held is not None),
        # Behind all that may refuse: no person is asked about a call that cannot be made; a result
        # that was kept for its requester passes the guards like any other.
        ApprovalGuard(find_held),
        Timeout(  # innermost: times the target, not the guards
            limits.tool_timeout_secs, limits.progress_timeout_secs, limits.task_timeout_secs
        ),
    ]


def apply_limits(
    stages: Sequence[Stage],
    chains: CallChains,
    kept: KeptResults,
    limiter: RateLimiter,
    limits: Limits,
) -> None:
    """Applies new limits to calls from now on."""
    from dragoman.guards.announce import Announce
    from dragoman.guards.loop import LoopGuard
    from dragoman.guards.overload import Overload
    from dragoman.guards.questions import Questions
    from dragoman.guards.timeout import Timeout
    from dragoman.guards.truncate import Truncate

    for stage in stages:
        if isinstance(stage, Announce):
            stage.apply(limits.calls_in_flight)
        elif isinstance(stage, Overload):
            stage.apply(limits.overload_delay_secs)
        elif isinstance(stage, LoopGuard):
            stage.apply(limits.loop)
        elif isinstance(stage, Questions):
            stage.logins.apply(limits.tool_timeout_secs)
        elif isinstance(stage, Truncate):
            stage.apply(limits)
        elif isinstance(stage, Timeout):
            stage.apply(
                limits.tool_timeout_secs, limits.progress_timeout_secs, limits.task_timeout_secs
            )
    chains.set_limits(chains.depth, limits.chain_calls, limits.chain_secs, limits.target_calls)
    kept.limit(limits.kept_megabytes, limits.kept_secs)
    limiter.apply(limits.rate.build_rules())
