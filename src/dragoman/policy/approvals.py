"""The annotations by which a policy demands an approval: `@approval`, `@approvers`, `@expires`. On
a permit they apply to what it allows, on a forbid to what it forbids unless it is approved."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from dragoman.core.approvals import ApprovalRule, is_role

APPROVAL, APPROVERS, EXPIRES = "approval", "approvers", "expires"
MAX_REASON = 500
MAX_APPROVERS = 50
MAX_SECONDS = 30 * 86_400
_UNITS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_DURATION = re.compile(r"([1-9][0-9]{0,6})([smhd])")


def rule_from_annotations(
    annotations: Mapping[str, str], lacks_exception: bool
) -> ApprovalRule | None:
    """Returns the approval that a policy demands; None if none. Raises ValueError.
    `lacks_exception`: it is a forbid that does not read `context.approved`."""
    reason = annotations.get(APPROVAL)
    if reason is None:
        for name in (APPROVERS, EXPIRES):
            if name in annotations:
                raise ValueError(f'@{name} belongs to @approval("reason"), which is missing')
        return None
    if lacks_exception:
        raise ValueError(
            "@approval on a forbid needs an exception for approved calls: unless "
            "{ context.approved }"
        )
    if not reason.strip() or len(reason) > MAX_REASON:
        raise ValueError(
            f"@approval needs the reason that the approver reads, of at most {MAX_REASON} "
            'characters: @approval("it deletes data")'
        )
    return ApprovalRule(
        reason.strip(),
        _parse_approvers(annotations.get(APPROVERS)),
        _parse_duration(annotations.get(EXPIRES)),
    )


def _parse_approvers(text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    found = tuple(dict.fromkeys(one.strip() for one in text.split(",")))
    if len(found) > MAX_APPROVERS or not all(_is_valid(one) for one in found):
        raise ValueError(
            f'invalid @approvers "{text[:100]}": name roles and principals, such as '
            '"role:lead, user:corp/anna"'
        )
    return found


def _is_valid(approver: str) -> bool:
    name = approver.removeprefix("role:") if is_role(approver) else approver.partition(":")[2]
    return bool(name) and approver.isprintable() and len(approver) <= 200


def _parse_duration(text: str | None) -> float:
    if text is None:
        return 0.0
    found = _DURATION.fullmatch(text.strip())
    seconds = int(found[1]) * _UNITS[found[2]] if found is not None else 0
    if not 0 < seconds <= MAX_SECONDS:
        raise ValueError(f'invalid @expires "{text[:40]}": write 30s, 10m, 1h or 7d, at most 30d')
    return float(seconds)


def combine_rules(
    policies: Iterable[str], rules: Mapping[str, ApprovalRule]
) -> ApprovalRule | None:
    """Returns the approval that a call needs which these permits allow; None if one of them allows
    it without. The approver of any of them is enough."""
    found = [rules.get(id) for id in policies]
    needed = [rule for rule in found if rule is not None]
    if not needed or len(needed) < len(found):
        return None
    if len(needed) == 1:
        return needed[0]
    named = () if any(not rule.approvers for rule in needed) else needed
    return ApprovalRule(
        "; ".join(dict.fromkeys(rule.reason for rule in needed)),
        tuple(dict.fromkeys(one for rule in named for one in rule.approvers)),
        min((rule.seconds for rule in needed if rule.seconds), default=0.0),
    )
