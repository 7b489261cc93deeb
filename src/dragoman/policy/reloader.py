"""Reloads changed policy files atomically: an invalid set is rejected with its reasons, and the
previous one stays active.
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
"""Called with the previous and the new policy set."""
FolderState = tuple[tuple[str, int, int, int, int], ...] | None
"""Name, time, size, inode and mode of each file; None if there is no folder."""

MEANWHILE: FolderState = (("", 0, 0, 0, 0),)
"""Equals the state of no folder: the folder changed while it was read, and is read again."""


class PolicyReloader:
    def __init__(
        self, policies: PolicyEngine, folder: Path, known: EntityLookup, changed: OnPolicyChange
    ) -> None:
        self.problem = ""
        """Why the current files are not active; empty if they are."""
        self.findings: tuple[PolicyFinding, ...] = policies.policy_set.warnings
        """Of the last set that was checked."""
        self._policies, self._folder, self._known = policies, folder, known
        self._changed = changed
        self._loaded = self._seen = read_state(folder)
        self._one = asyncio.Lock()

    async def poll(self) -> bool:
        """Reloads changed files; returns whether other policies are active now."""
        state = read_state(self._folder)
        if state == self._loaded:
            self._seen = state
            return False
        if state != self._seen:  # it may still be written: half of a set may be a valid set
            self._seen = state
            return False
        try:
            before = self._policies.policy_set
            return await self.reload() is not before
        except PolicyError:
            return False

    @property
    def is_stale(self) -> bool:
        """Whether the folder has changed since it was last loaded or rejected."""
        return read_state(self._folder) != self._loaded

    async def reload(self) -> PolicySet:
        """Loads the files now. Raises if they are invalid; the active policies stay."""
        async with self._one:
            state = read_state(self._folder)
            self._seen = self._loaded = state
            before = self._policies.policy_set
            if state is None and not before.default:
                # The folder was removed, or is just being replaced: a moment without one must not
                # activate the defaults, which permit more.
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
        except Exception as error:
            words = f"the policies could not be checked: {error!r}"
            return CheckedPolicies(None, (PolicyFinding(ERROR, "", 0, "", words),), ())

    def _reject(self, findings: tuple[PolicyFinding, ...]) -> PolicyError:
        error = PolicyError(findings)
        self.findings = findings
        self.problem = f"{error}\n(the previous policies stay active)"
        return error


def read_state(folder: Path) -> FolderState:
    """Returns the state of the folder without reading its files."""
    try:
        with os.scandir(folder) as entries:
            found = [(".", 0, 0, 0, os.stat(folder).st_mode)]
            for entry in entries:
                if entry.name.endswith((POLICIES, TESTS)) and not entry.name.startswith("."):
                    about = entry.stat()
                    found.append(
                        (entry.name, about.st_mtime_ns, about.st_size, about.st_ino, about.st_mode)
                    )
            return tuple(sorted(found))
    except OSError:
        return None


def _describe_missing(folder: Path) -> PolicyFinding:
    words = (
        f"the folder {folder} is missing or cannot be read: restore it; to use the default "
        "policies instead, stop the hub and run: dragoman stores accept-loss policies"
    )
    return PolicyFinding(ERROR, "", 0, "", words)
