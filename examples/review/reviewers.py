"""Three agents, each a Python function: two reviewers of a change, and a reporter. They need no
model, no key and no network."""

from __future__ import annotations

import re
from typing import Any

from dragoman.agent import Request

LONGEST_LINE = 100
RISKS = {
    r"\beval\(|\bexec\(": "runs text as code",
    r"shell\s*=\s*True": "starts a shell",
    r"verify\s*=\s*False": "does not verify certificates",
    r"(?i)(password|api_key|secret)\s*=\s*[\"'][^\"']+": "contains a secret",
}


def list_added_lines(request: Request) -> list[str]:
    """Lists the lines that the change adds; the change comes as data beside the message."""
    diff = str(request.data.get("diff", "") if isinstance(request.data, dict) else "")
    return [line[1:] for line in diff.splitlines() if line.startswith("+") and line[:3] != "+++"]


def review_style(request: Request) -> dict[str, Any]:
    """Checks what a linter would."""
    findings = []
    for number, line in enumerate(list_added_lines(request), 1):
        if len(line) > LONGEST_LINE:
            findings.append(f"added line {number} is {len(line)} characters long")
        if "print(" in line:
            findings.append(f"added line {number} prints; use a logger")
    return {"reviewer": "style", "findings": findings}


def review_security(request: Request) -> dict[str, Any]:
    """Looks for code that is often a vulnerability."""
    findings = [
        f"added line {number} {risk}"
        for number, line in enumerate(list_added_lines(request), 1)
        for pattern, risk in RISKS.items()
        if re.search(pattern, line)
    ]
    return {"reviewer": "security", "findings": findings}


def report(request: Request) -> str:
    """Writes the report of a review that a person has accepted."""
    data = request.data if isinstance(request.data, dict) else {}
    reviews = data.get("reviews", [])
    lines = [f"# {data.get('title', 'Review')}"]
    for review in reviews:
        lines.append(f"{review['reviewer']}: {len(review['findings'])} findings")
        lines += [f"- {finding}" for finding in review["findings"]]
    lines.append(f"approved by {data.get('approvedBy', 'nobody')}")
    return "\n".join(lines)
