"""Looks whether the files of policies have changed, and brings them into force as one, or not at
all: a set with something wrong leaves the one before it where it is, and says why.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from dragoman.core.file_modes import find_exposures_in
from dragoman.policy.engine import PolicyEngine
from dragoman.policy.lint import EntityLookup
from dragoman.policy.loader import POLICIES, TESTS, CheckedPolicies, PolicyError, check_folder
from dragoman.policy.policy_set import ERROR, PolicyFinding, PolicySet

OnPolicyChange = Callable[[PolicySet, PolicySet], None]
"""The set before and the one now in force."""
FolderState = tuple[tuple[str, int, int, int, int], ...] | None
"""Name, time, size, inode and mode of each file; None where there is no folder."""

MEANWHILE: FolderState = (("", 0, 0, 0, 0),)
"""As no folder ever is: it has changed while it was read, and is looked at again."""


class PolicyReloader:
    def __init__(
        self, policies: PolicyEngine, folder: Path, known: EntityLookup, changed: OnPolicyChange
    ) -> None:
        self.problem = ""
        """Why the files as they are now are not in force; empty when they are."""
        self.findings: tuple[PolicyFinding, ...] = policies.policy_set.warnings
        """Of the last set that was looked at."""
        self._policies, self._folder, self._known = policies, folder, known
        self._changed = changed
        self._loaded = self._seen = read_state(folder)
        self._one = asyncio.Lock()

    async def poll(self) -> bool:
        """Whether other policies have come into force."""
        state = read_state(self._folder)
        if state == self._loaded:
            self._seen = state
            return False
        if state != self._seen:  # it may still be being written: half of a set may be a set too
            self._seen = state
            return False
        try:
            before = self._policies.policy_set
            return await self.reload() is not before
        except PolicyError:
            return False

    @property
    def is_stale(self) -> bool:
        """Whether the folder is another than what was loaded of it, or looked at in vain."""
        return read_state(self._folder) != self._loaded

    async def reload(self) -> PolicySet:
        """At once. Raises where they cannot be used; what was in force stays."""
        async with self._one:
            state = read_state(self._folder)
            self._seen = self._loaded = state
            before = self._policies.policy_set
            if state is None and not before.default:
                # Somebody has removed it, or is about to put another there: that nothing is there
                # for a moment must not bring the defaults into force, which permit more.
                raise self._reject((_describe_missing(self._folder),))
            checked = await asyncio.to_thread(self._check)
            if read_state(self._folder) != state:
                self._loaded = MEANWHILE
            self.findings = checked.findings
            if checked.policy_set is None:
                raise self._reject(checked.findings)
            self.problem = ""
            if checked.policy_set.hash == before.hash:
                return before
            self._policies.swap(checked.policy_set)
            self._changed(before, checked.policy_set)
            return checked.policy_set

    def _check(self) -> CheckedPolicies:
        exposed = next((one for one in find_exposures_in(self._folder) if one.reachable), None)
        if exposed is not None:
            return CheckedPolicies(None, (PolicyFinding(ERROR, "", 0, "", str(exposed)),), ())
        try:
            return check_folder(self._folder, self._known)
        except PolicyError as error:
            return CheckedPolicies(None, error.findings, ())
        except Exception as error:
            words = f"they could not be looked at: {error!r}"
            return CheckedPolicies(None, (PolicyFinding(ERROR, "", 0, "", words),), ())

    def _reject(self, findings: tuple[PolicyFinding, ...]) -> PolicyError:
        error = PolicyError(findings)
        self.findings = findings
        self.problem = f"{error}\n(those that were in force before still are)"
        return error


def read_state(folder: Path) -> FolderState:
    """What the folder has, without reading it."""
    try:
        with os.scandir(folder) as entries:
            found = [(".", 0, 0, 0, os.stat(folder).st_mode)]
            for entry in entries:
                if entry.name.endswith((POLICIES, TESTS)) and not entry.name.startswith("."):
                    about = entry.stat()
                    found.append(
                        (
                            entry.name,
                            about.st_mtime_ns,
                            about.st_size,
                            about.st_ino,
                            about.st_mode,
                        )
                    )
            return tuple(sorted(found))
    except OSError:
        return None


def _describe_missing(folder: Path) -> PolicyFinding:
    words = (
        f"the folder {folder} is gone or cannot be read: put it back; to have the default "
        "policies instead, stop the hub and run: dragoman stores accept-loss policies"
    )
    return PolicyFinding(ERROR, "", 0, "", words)
