"""Scans a skill for what its author could misuse: advice before it is installed, not a proof.

Texts reach the prompts of agents, so they are searched for phrases that override instructions or
send data away; the manifest is searched for what the skill demands. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from dragoman.agents.skills.manifest import NODE, SHELL, SkillManifest

CRITICAL, WARNING, INFO = "critical", "warning", "info"
LEVELS = (CRITICAL, WARNING, INFO)
MANY_TOOLS = 10
LONG_PROMPT = 50_000
_SHOWN = 60

_SHELL = re.compile(r"shell|bash|exec|process_start", re.IGNORECASE)
_WRITES = re.compile(r"file_write|apply_patch|filewrite|write_file|\bWrite\b|\bEdit\b")
_ANY_HOST = re.compile(r"(netconnect|network|net)\W*\*", re.IGNORECASE)
_OVERRIDES = re.compile(
    r"(ignore|disregard|forget|override)\s+(all\s+|any\s+)?(of\s+)?(the\s+|your\s+|my\s+)?"
    r"(previous|prior|earlier|above|preceding|system|existing)\s+"
    r"(instruction|prompt|rule|message|guideline|direction|context)"
    r"|you are now (in )?(developer mode|dan\b|jailbroken|unrestricted)"
    r"|new system prompt|system prompt override|do not (tell|inform|mention|reveal) .{0,30}user"
    r"|without (telling|asking|informing) the user",
    re.IGNORECASE,
)
_SENDS = re.compile(
    r"(send|post|upload|forward|transmit|exfiltrate|report)\b[^.\n]{0,60}\b(to|at)\s+https?://"
    r"|curl\s[^\n]{0,200}(-d|--data|-F|-T)\b|base64[^\n]{0,40}(curl|wget|https?://)"
    r"|(read|cat|print|include|send)\b[^.\n]{0,40}(\.env\b|\.ssh|id_rsa|credentials|api[ _-]?key"
    r"|password|secret)",
    re.IGNORECASE,
)
_DANGEROUS = re.compile(
    r"\brm\s+-[a-z]*r[a-z]*f|\bchmod\s+(-R\s+)?[0-7]*7[0-7]{2}\b|\bsudo\b|\bmkfs\b|\bdd\s+if="
    r"|(curl|wget)[^\n|]{0,200}\|\s*(ba|z)?sh\b",
    re.IGNORECASE,
)
_HIDDEN = re.compile("[\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]")
"""Direction marks and tags: a model reads what a person does not see."""


class SkillFinding(NamedTuple):
    level: str
    words: str


def scan_skill(manifest: SkillManifest) -> list[SkillFinding]:
    """Lists what is found, the most serious first."""
    found = [*_scan_manifest(manifest), *_scan_texts(manifest)]
    return sorted(found, key=lambda one: LEVELS.index(one.level))


def _scan_manifest(manifest: SkillManifest) -> Iterator[SkillFinding]:
    for demand in (*manifest.required_tools, *manifest.capabilities):
        if _SHELL.search(demand):
            yield SkillFinding(CRITICAL, f'it wants an agent to run commands: "{demand[:_SHOWN]}"')
        elif _ANY_HOST.search(demand):
            yield SkillFinding(WARNING, f'it wants the whole network: "{demand[:_SHOWN]}"')
        elif _WRITES.search(demand):
            yield SkillFinding(WARNING, f'it wants an agent to write files: "{demand[:_SHOWN]}"')
    if manifest.runtime == NODE:
        yield SkillFinding(WARNING, "its program runs in Node.js, which may load many modules")
    if manifest.runtime == SHELL:
        yield SkillFinding(WARNING, "its program is a shell script: read it")
    if manifest.tools and manifest.network:
        yield SkillFinding(
            INFO, "its program may use the network; network = false in [runtime] prevents that"
        )
    if len(manifest.tools) > MANY_TOOLS:
        yield SkillFinding(INFO, f"it has {len(manifest.tools)} tools")
    for warning in manifest.warnings:
        yield SkillFinding(INFO, warning)


def _scan_texts(manifest: SkillManifest) -> Iterator[SkillFinding]:
    texts = {"its prompt": manifest.prompt, "its description": manifest.description}
    texts |= {f'the description of tool "{one.name}"': one.description for one in manifest.tools}
    for where, text in texts.items():
        for pattern, level, what in (
            (_OVERRIDES, CRITICAL, "tries to override instructions"),
            (_HIDDEN, CRITICAL, "has characters that a person does not see"),
            (_SENDS, WARNING, "may send data away"),
            (_DANGEROUS, WARNING, "has a dangerous command"),
        ):
            if match := pattern.search(text):
                line = text.count("\n", 0, match.start()) + 1
                words = " ".join(match[0].split())[:_SHOWN]
                yield SkillFinding(level, f"{where} {what}, line {line}: {ascii(words)[1:-1]}")
    if len(manifest.prompt.encode()) > LONG_PROMPT:
        yield SkillFinding(INFO, f"its prompt has {len(manifest.prompt.encode())} bytes")
