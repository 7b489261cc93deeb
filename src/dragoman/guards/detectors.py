"""Recognises credentials and personal data in texts, with few false positives.

Credentials are recognised by the formats that their issuers publish; numbers of people and accounts
by their check digits, with python-stdnum. Random-looking text is no evidence: hashes and ids are
everywhere. A plain search for literals decides first, because most texts have none of them.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MAX_LOOKED_AT = 1_000_000
"""Characters of a text; the rest is not searched."""


class CredentialFormat(NamedTuple):
    kind: str
    literals: tuple[str, ...]
    """The text has a credential of this format only if it has one of these."""
    pattern: re.Pattern[str]


def _format(kind: str, literals: str, pattern: str) -> CredentialFormat:
    return CredentialFormat(kind, tuple(literals.split()), re.compile(pattern))


CREDENTIALS = (
    _format("private key", "-----BEGIN", r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----"),
    _format("AWS access key", "AKIA ASIA", r"\b(?:AKIA|ASIA)[A-Z2-7]{16}\b"),
    _format(
        "AWS secret key",
        "aws_secret AWS_SECRET SecretAccessKey",
        r"(?:aws_secret_access_key|AWS_SECRET_ACCESS_KEY|SecretAccessKey)"
        r"[\"']?\s*[=:]\s*[\"']?([A-Za-z0-9/+]{40})\b",
    ),
    _format("GitHub token", "ghp_ gho_ ghu_ ghs_ ghr_", r"\bgh[pousr]_[A-Za-z0-9]{36,255}\b"),
    _format("GitHub token", "github_pat_", r"\bgithub_pat_[A-Za-z0-9]{22}_[A-Za-z0-9]{59}\b"),
    _format("GitLab token", "glpat-", r"\bglpat-[A-Za-z0-9_-]{20,300}"),
    _format("Slack token", "xox", r"\bxox[abeoprs]-[A-Za-z0-9-]{20,}"),
    _format("Slack token", "xapp-", r"\bxapp-\d-[A-Z0-9]+-\d+-[a-f0-9]{32,}"),
    _format("Anthropic key", "sk-ant-", r"\bsk-ant-[a-z]+\d{2}-[A-Za-z0-9_-]{80,}"),
    _format(
        "OpenAI key", "T3BlbkFJ", r"(?<![\w-])sk-[A-Za-z0-9_-]{20,200}T3BlbkFJ[A-Za-z0-9_-]{20,200}"
    ),
    _format("Google API key", "AIza", r"\bAIza[A-Za-z0-9_-]{35}(?![A-Za-z0-9_-])"),
    _format("Google token", "ya29.", r"\bya29\.[A-Za-z0-9_-]{30,}"),
    _format("Stripe key", "sk_live_ rk_live_", r"\b[sr]k_live_[A-Za-z0-9]{20,}"),
    _format("SendGrid key", "SG.", r"\bSG\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9_-]{43}"),
    _format("npm token", "npm_", r"\bnpm_[A-Za-z0-9]{36}\b"),
    _format("PyPI token", "pypi-AgEI", r"\bpypi-AgEI[A-Za-z0-9_-]{50,}"),
    _format("Hugging Face token", "hf_", r"\bhf_[A-Za-z]{34}\b"),
    _format("DigitalOcean token", "dop_v1_ doo_v1_", r"\bdo[op]_v1_[a-f0-9]{64}\b"),
    _format("Azure storage key", "AccountKey=", r"AccountKey=[A-Za-z0-9+/]{86}=="),
    _format(
        "JSON Web Token",
        "eyJ",
        r"(?<![\w-])eyJ[A-Za-z0-9_-]{10,2000}\.eyJ[A-Za-z0-9_-]{10,4000}\.[A-Za-z0-9_-]{27,}",
    ),
    _format(
        "password in a URL",
        "://",
        r"\b[a-z][a-z0-9+.-]{1,20}://[^\s/:@\"'<>]{1,64}:([^\s/:@\"'<>]{6,128})@"
        r"(?!localhost|127\.|example)[A-Za-z0-9.-]+",
    ),
)
_ALL = tuple(dict.fromkeys(one for each in CREDENTIALS for one in each.literals))
_LITERALS = re.compile("|".join(map(re.escape, _ALL)))
SHORT = 64
"""Characters of a text that one search for all literals takes less time for."""
_SIGNS = "_=/-.3xzKJI"
"""Rare characters, of which each literal has one: a text without it needs no search for it."""


def _group_by_sign() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for literal in _ALL:
        found.setdefault(next(sign for sign in _SIGNS if sign in literal), []).append(literal)
    return found


_BY_SIGN = tuple(_group_by_sign().items())
_PLACEHOLDER = re.compile(
    r"example|x{6}|\*{3}|\.\.\.|\$|%|\{|password|passwd|secret|changeme|your|token|dummy|test", re.I
)
MIN_DISTINCT = 8
"""Different characters in a credential: placeholders repeat a few."""

MIN_DIGITS = 9
"""Digits of the shortest number."""
_NUMBERS = re.compile(
    r"(?<![\w.-])(?:"
    r"(?P<ssn>\d{3}-\d{2}-\d{4})"
    r"|(?P<card>(?:4\d|5[1-5]|2[2-7]|3[47])\d{2}[ -]?\d{4,6}[ -]?\d{4,5}(?:[ -]?\d{4})?)"
    r"|(?P<iban>[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?)"
    r")(?![\w.-]*\w)"
)


def find_credential(text: str) -> str:
    """Returns the kind of the first credential in the text; empty if there is none."""
    text = text[:MAX_LOOKED_AT]
    has_literal = _LITERALS.search(text) if len(text) < SHORT else _has_literal(text)
    if not has_literal:  # most texts
        return ""
    for kind, literals, pattern in CREDENTIALS:
        if any(literal in text for literal in literals) and any(
            map(_is_real, pattern.finditer(text))
        ):
            return kind
    return ""


def _has_literal(text: str) -> bool:
    for sign, literals in _BY_SIGN:
        if sign in text:
            for literal in literals:
                if literal in text:
                    return True
    return False


def _is_real(found: re.Match[str]) -> bool:
    value = found[found.lastindex or 0]
    if value.startswith("-----BEGIN"):
        return True
    if found.re.groups:  # a value that people choose, and that documents make up
        return not _PLACEHOLDER.search(value)
    return len(set(value)) >= MIN_DISTINCT and "EXAMPLE" not in value.upper()


def find_personal_data(text: str) -> str:
    """Returns the kind of the first number of a person or account; empty if there is none."""
    text = text[:MAX_LOOKED_AT]
    data = text.encode("utf-8", "replace")
    if len(data) - len(data.translate(None, b"0123456789")) < MIN_DIGITS:  # most texts
        return ""
    for found in _NUMBERS.finditer(text):
        if found["ssn"]:
            from stdnum.us import ssn

            if ssn.is_valid(found["ssn"]):
                return "social security number"
        elif found["card"]:
            from stdnum import luhn

            digits = re.sub(r"\D", "", found["card"])
            if len(digits) == (15 if digits[0] == "3" else 16) and luhn.is_valid(digits):
                return "payment card"
        else:
            from stdnum import iban

            if iban.is_valid(found["iban"]):
                return "bank account"
    return ""
