"""The folder of policy files: reads, plans and makes changes, and checks a set of texts.

`NAME.cedar` is in force, `NAME.cedar.off` is disabled, `*.toml` holds golden tests. Knows no hub.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from dragoman.core.errors import ConfigError, InvalidInput, NotFound
from dragoman.core.file_modes import make_private_folder
from dragoman.core.nearest_names import find_nearest
from dragoman.policy import loader
from dragoman.policy.lint import EntityLookup
from dragoman.policy.loader import DEFAULT, CheckedPolicies
from dragoman.policy.policy_set import PolicyFinding

ENABLED, DISABLED = ".cedar", ".cedar.off"
TEMPORARY = ".tmp"
MAX_BYTES = 1024 * 1024
MAX_DISABLED = 200
MAX_WRITTEN = 200
MAX_WRITTEN_BYTES = 4 * 1024 * 1024
"""Of the files in force after a change. What is read may be more: hubs of a cluster that add files
at the same time must not prevent each other's start."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)


class PolicyFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def exists(self) -> bool:
        return self.path.is_dir()

    def read_texts(self) -> dict[str, str]:
        """Returns the texts in force by file name; the default set if there is no folder."""
        return loader.read_texts(self.path) if self.exists else read_default_texts()

    def read_disabled(self) -> dict[str, str]:
        """Returns the disabled texts by name, without the ending."""
        if not self.exists:
            return {}
        found = sorted(file for file in self.path.iterdir() if file.name.endswith(DISABLED))
        return {file.name.removesuffix(DISABLED): _read(file) for file in found[:MAX_DISABLED]}

    def list_files(self) -> list[dict[str, Any]]:
        """Describes each file: its name, whether it is enabled, its policies, its own errors."""
        enabled = {
            name.removesuffix(ENABLED): text
            for name, text in self.read_texts().items()
            if name.endswith(ENABLED)
        }
        found = [_describe(name, text, True) for name, text in enabled.items()]
        found += [_describe(name, text, False) for name, text in self.read_disabled().items()]
        return sorted(found, key=lambda entry: (str(entry["name"]), not entry["enabled"]))

    def read(self, name: str) -> tuple[str, bool]:
        """Returns the text of a file, and whether it is enabled."""
        name = parse_name(name)
        texts = self.read_texts()
        if (text := texts.get(name + ENABLED)) is not None:
            return text, True
        disabled = self.read_disabled()
        if (text := disabled.get(name)) is not None:
            return text, False
        known = [each.removesuffix(ENABLED) for each in texts if each.endswith(ENABLED)]
        near = find_nearest(name, [*known, *disabled])
        hint = f'; did you mean "{near}"?' if near else ""
        raise NotFound(f'policy file "{name}{ENABLED}" not found{hint}')

    # --- the texts that a change would put in force ----------------------------------------------

    def plan_write(self, name: str, text: str) -> dict[str, str]:
        texts = {**self.read_texts(), parse_name(name) + ENABLED: text}
        size = sum(len(one.encode()) for one in texts.values())
        if len(texts) > MAX_WRITTEN or size > MAX_WRITTEN_BYTES:
            raise InvalidInput(
                f"there would be {len(texts)} policy files of {size:,} bytes together, and there "
                f"may be {MAX_WRITTEN} of {MAX_WRITTEN_BYTES:,} bytes: remove some, or put "
                "several policies into one file"
            )
        return texts

    def plan_remove(self, name: str) -> dict[str, str]:
        self.read(name)
        removed = parse_name(name) + ENABLED
        return {file: text for file, text in self.read_texts().items() if file != removed}

    def plan_enable(self, name: str, enabled: bool) -> dict[str, str]:
        text, _ = self.read(name)
        return self.plan_write(name, text) if enabled else self.plan_remove(name)

    # --- changes ---------------------------------------------------------------------------------

    def create_default(self) -> list[str]:
        """Writes the default set if there is no folder, and returns the names of its files. Atomic:
        an empty folder permits nothing, and a hub may be watching."""
        if self.exists:
            return []
        texts = read_default_texts()
        made = ""
        try:
            make_private_folder(self.path.parent)
            made = tempfile.mkdtemp(dir=self.path.parent, prefix=f".{self.path.name}.")
            for name, text in texts.items():
                file = Path(made) / name
                file.touch(mode=0o600)
                file.write_text(text, encoding="utf-8")
            os.rename(made, self.path)
        except OSError as error:
            if made:
                shutil.rmtree(made, ignore_errors=True)
            raise self._build_error(error) from None
        return sorted(texts)

    def write(self, name: str, text: str) -> str:
        """Writes an enabled file atomically and removes a disabled one of that name. If that fails,
        returns what is left to do: the new file is in force already."""
        self.create_default()
        name = parse_name(name)
        target, disabled = self.path / (name + ENABLED), self.path / (name + DISABLED)
        ready = ""
        try:
            if target.is_symlink():
                raise InvalidInput(f'"{target}" is a symbolic link: change the file it points to')
            handle, ready = tempfile.mkstemp(dir=self.path, prefix=f".{name}.", suffix=TEMPORARY)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(ready, target)
        except OSError as error:
            if ready:
                with contextlib.suppress(OSError):
                    os.unlink(ready)
            raise self._build_error(error) from None
        try:
            disabled.unlink(missing_ok=True)
        except OSError as error:
            return f'"{disabled}" could not be removed ({error.strerror}): remove it'
        return ""

    def clean(self) -> None:
        """Removes the temporary files of a hub that was killed while it wrote."""
        for left in self.path.glob(f".*{TEMPORARY}"):
            with contextlib.suppress(OSError):
                left.unlink()
        for left in self.path.parent.glob(f".{self.path.name}.????????"):
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left, ignore_errors=True)

    def remove(self, name: str) -> None:
        self.create_default()
        for ending in (ENABLED, DISABLED):
            try:
                (self.path / (parse_name(name) + ending)).unlink(missing_ok=True)
            except OSError as error:
                raise self._build_error(error) from None

    def enable(self, name: str, enabled: bool) -> None:
        self.create_default()
        before, after = (DISABLED, ENABLED) if enabled else (ENABLED, DISABLED)
        name = parse_name(name)
        if self.read(name)[1] == enabled:
            return
        try:
            os.replace(self.path / (name + before), self.path / (name + after))
        except OSError as error:
            raise self._build_error(error) from None

    def _build_error(self, error: OSError) -> ConfigError:
        return ConfigError(f'cannot change the policies in "{self.path}": {error.strerror}')


def read_default_texts() -> dict[str, str]:
    """Returns the policies of a hub without a folder."""
    shipped = resources.files("dragoman.policy").joinpath("shipped", DEFAULT)
    return {DEFAULT: shipped.read_text("utf-8")}


def parse_name(name: str) -> str:
    """Returns the name of a policy file without its ending."""
    name = name.removesuffix(ENABLED)
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"invalid policy file name {name[:100]!r}: use up to 64 letters, digits, dots, hyphens "
            "and underscores, beginning with a letter or a digit"
        )
    return name


def _read(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ConfigError(f'"{file}" is too large: more than {MAX_BYTES} bytes')
        return data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f'cannot read "{file}": {error}') from None


@lru_cache(maxsize=256)
def _check_alone(name: str, text: str) -> CheckedPolicies:
    return loader.check_texts({name + ENABLED: text})


def _describe(name: str, text: str, enabled: bool) -> dict[str, Any]:
    checked = _check_alone(name, text)
    policies = checked.policy_set.policies if checked.policy_set else ()
    errors = [each.words for each in checked.findings if each.level == "error"]
    return {
        "name": name,
        "enabled": enabled,
        "policies": [
            {"id": each.id, "effect": each.effect, "line": each.line}
            for each in policies
            if not each.guardrail
        ],
        "problem": "; ".join(errors),
    }


# --- checking a set ------------------------------------------------------------------------------


def build_report(texts: Mapping[str, str], known: EntityLookup | None) -> dict[str, Any]:
    """Reports on a set of texts. Without `known`, ids that do not exist are not reported."""
    return render_checked(loader.check_texts(texts, known))


def render_checked(checked: CheckedPolicies) -> dict[str, Any]:
    snapshot = checked.policy_set
    policies = [each for each in snapshot.policies if not each.guardrail] if snapshot else []
    return {
        "ok": snapshot is not None,
        "snapshot": snapshot.hash if snapshot else "",
        "policies": len(policies),
        "tests": len(checked.outcomes),
        "findings": [render_finding(each) for each in checked.findings],
        "uncached": [
            {"id": each.id, "reads": list(each.uncached)} for each in policies if each.uncached
        ],
    }


def run_tests(texts: Mapping[str, str]) -> dict[str, Any]:
    """Runs the golden tests of a set and reports each outcome."""
    checked = loader.check_texts(texts)
    outcomes = checked.outcomes
    return {
        "ok": checked.policy_set is not None,
        "tests": [
            {"name": each.name, "file": each.file, "passed": each.passed, "message": each.words}
            for each in outcomes
        ],
        "findings": [render_finding(each) for each in checked.findings],
    }


def render_finding(finding: PolicyFinding) -> dict[str, Any]:
    return {
        "file": finding.file,
        "line": finding.line,
        "policy": finding.policy,
        "level": finding.level,
        "message": f"{finding.policy}: {finding.words}" if finding.policy else finding.words,
    }
