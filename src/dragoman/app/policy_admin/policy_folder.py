"""The folder of policies: what is in it, what would be if it were changed, and whether that could
be put in force. Needs no hub. Part of `policy_side`, and what the command line goes by.

`NAME.cedar` is in force, `NAME.cedar.off` is not; `*.toml` holds the decisions they must give.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from dragoman.config import Config, load
from dragoman.core.errors import ConfigError, HubError, InvalidInput, NotFound
from dragoman.core.file_modes import make_private_folder
from dragoman.core.principal import LOCAL, OWNER, Principal
from dragoman.core.tool import Tool
from dragoman.core.tool_identity import fold_id
from dragoman.policy import loader
from dragoman.policy.ids import id_from_tool, split_id
from dragoman.policy.lint import EntityLookup
from dragoman.policy.loader import DEFAULT, CheckedPolicies
from dragoman.policy.policy_set import PolicyFinding
from dragoman.stores.keys import DATABASE, KeyRecord, KeyStore
from dragoman.stores.registry import DATABASE as REGISTRY
from dragoman.stores.registry import RegistryStore

ON, OFF, TESTS = ".cedar", ".cedar.off", ".toml"
TEMPORARY = ".tmp"
MAX_BYTES = 1024 * 1024
MAX_OFF = 200
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", re.ASCII)


class Folder:
    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def exists(self) -> bool:
        return self.path.is_dir()

    def texts(self) -> dict[str, str]:
        """Of what is in force, by the names of the files; the default set where there is none."""
        return loader.read_texts(self.path) if self.exists else default_texts()

    def off(self) -> dict[str, str]:
        """The same of what is switched off."""
        if not self.exists:
            return {}
        found = sorted(file for file in self.path.iterdir() if file.name.endswith(OFF))
        return {file.name.removesuffix(OFF): _text(file) for file in found[:MAX_OFF]}

    def files(self) -> list[dict[str, Any]]:
        """Each with its name, whether it is in force, its policies, and what is wrong with it by
        itself."""
        on = {
            name.removesuffix(ON): text for name, text in self.texts().items() if name.endswith(ON)
        }
        found = [_file(name, text, True) for name, text in on.items()]
        found += [_file(name, text, False) for name, text in self.off().items()]
        return sorted(found, key=lambda entry: (str(entry["name"]), not entry["enabled"]))

    def text(self, name: str) -> tuple[str, bool]:
        """What the file says, and whether it is in force."""
        name = named(name)
        texts = self.texts()
        if (text := texts.get(name + ON)) is not None:
            return text, True
        off = self.off()
        if (text := off.get(name)) is not None:
            return text, False
        known = [*(each.removesuffix(ON) for each in texts if each.endswith(ON)), *off]
        near = difflib.get_close_matches(name, known, n=1)
        hint = f'; did you mean "{near[0]}"?' if near else ""
        raise NotFound(f'there is no file "{name}{ON}" among the policies{hint}')

    # --- what would be ---------------------------------------------------------------------------

    def written(self, name: str, text: str) -> dict[str, str]:
        return {**self.texts(), named(name) + ON: text}

    def removed(self, name: str) -> dict[str, str]:
        self.text(name)
        return {file: text for file, text in self.texts().items() if file != named(name) + ON}

    def switched(self, name: str, on: bool) -> dict[str, str]:
        text, _ = self.text(name)
        return self.written(name, text) if on else self.removed(name)

    # --- and what is done ------------------------------------------------------------------------

    def init(self) -> list[str]:
        """Writes the default set where there is no folder, and says what. In one step: an empty
        folder permits nothing, and a hub may be looking."""
        if self.exists:
            return []
        texts = default_texts()
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
            raise self._unwritable(error) from None
        return sorted(texts)

    def write(self, name: str, text: str) -> str:
        """In one step, whatever was there. A file of that name that is switched off goes; says what
        is left to do where it cannot be removed, for the new one is in force already."""
        self.init()
        name = named(name)
        target, off = self.path / (name + ON), self.path / (name + OFF)
        ready = ""
        try:
            if target.is_symlink():
                raise InvalidInput(f'"{target}" is a link; change what it leads to')
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
            raise self._unwritable(error) from None
        try:
            off.unlink(missing_ok=True)
        except OSError as error:
            return f'"{off}" could not be removed ({error.strerror}): remove it'
        return ""

    def clean(self) -> None:
        """Removes what a hub that was killed while it wrote has left."""
        for left in self.path.glob(f".*{TEMPORARY}"):
            with contextlib.suppress(OSError):
                left.unlink()
        for left in self.path.parent.glob(f".{self.path.name}.????????"):
            if left.is_dir() and not left.is_symlink():
                shutil.rmtree(left, ignore_errors=True)

    def remove(self, name: str) -> None:
        self.init()
        for end in (ON, OFF):
            try:
                (self.path / (named(name) + end)).unlink(missing_ok=True)
            except OSError as error:
                raise self._unwritable(error) from None

    def switch(self, name: str, on: bool) -> None:
        self.init()
        before, after = (OFF, ON) if on else (ON, OFF)
        name = named(name)
        if self.text(name)[1] == on:
            return
        try:
            os.replace(self.path / (name + before), self.path / (name + after))
        except OSError as error:
            raise self._unwritable(error) from None

    def _unwritable(self, error: OSError) -> ConfigError:
        return ConfigError(f'the policies in "{self.path}" cannot be changed: {error.strerror}')


def default_texts() -> dict[str, str]:
    """What holds where there is no folder."""
    shipped = resources.files("dragoman.policy").joinpath("shipped", DEFAULT)
    return {DEFAULT: shipped.read_text("utf-8")}


def named(name: str) -> str:
    """The name of a file without its ending, which may be given."""
    name = name.removesuffix(ON)
    if not _NAME.fullmatch(name):
        raise InvalidInput(
            f"{name[:100]!r} cannot name a file of policies: use up to 64 letters, digits, dots, "
            "hyphens and underscores, beginning with a letter or a digit"
        )
    return name


def _text(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ConfigError(f'"{file}" has more than {MAX_BYTES} bytes')
        return data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f'"{file}" cannot be read: {error}') from None


@lru_cache(maxsize=256)
def _alone(name: str, text: str) -> CheckedPolicies:
    return loader.check_texts({name + ON: text})


def _file(name: str, text: str, enabled: bool) -> dict[str, Any]:
    checked = _alone(name, text)
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


# --- whether it could be put in force ------------------------------------------------------------


def judge(texts: Mapping[str, str], known: EntityLookup | None) -> dict[str, Any]:
    """Everything that is to be said of a set. `known` None: whether what they name is there cannot
    be told."""
    return judged(loader.check_texts(texts, known))


def judged(checked: CheckedPolicies) -> dict[str, Any]:
    snapshot = checked.policy_set
    policies = [each for each in snapshot.policies if not each.guardrail] if snapshot else []
    return {
        "ok": snapshot is not None,
        "snapshot": snapshot.hash if snapshot else "",
        "policies": len(policies),
        "tests": len(checked.outcomes),
        "findings": [shown(each) for each in checked.findings],
        "uncached": [
            {"id": each.id, "reads": list(each.uncached)} for each in policies if each.uncached
        ],
    }


def tested(texts: Mapping[str, str]) -> dict[str, Any]:
    """The golden decisions of a set, each with what came of it."""
    checked = loader.check_texts(texts)
    outcomes = checked.outcomes
    return {
        "ok": checked.policy_set is not None,
        "tests": [
            {
                "name": each.name,
                "file": each.file,
                "passed": each.passed,
                "message": each.words,
            }
            for each in outcomes
        ],
        "findings": [shown(each) for each in checked.findings],
    }


def shown(finding: PolicyFinding) -> dict[str, Any]:
    return {
        "file": finding.file,
        "line": finding.line,
        "policy": finding.policy,
        "level": finding.level,
        "message": f"{finding.policy}: {finding.words}" if finding.policy else finding.words,
    }


# --- what is known where no hub runs -------------------------------------------------------------


def folder_of(place: Path) -> Folder:
    """Of the hub whose home is `place`."""
    return Folder(place / load(place / "config.toml").policy.folder)


def principal_from_key(record: KeyRecord) -> Principal:
    return Principal(
        "key",
        record.name,
        record.org,
        roles=record.roles,
        scopes=record.scopes,
        behalf=record.owner,
        serves=record.target,
    )


def principals(config: Config, records: Iterable[KeyRecord], now: float) -> list[Principal]:
    """Everybody who can call: those who need no key, and those whose keys are good."""
    found = [OWNER]
    keys = list(records)
    if config.api_key is None and not keys:
        found.append(LOCAL)
    if config.api_key is not None:
        found.append(Principal("key", "api_key", roles=("owner",)))
    return found + [principal_from_key(key) for key in keys if key.get_state(now) == "active"]


class Names:
    """The ids that policies may mention here. What a target offers is known only while it does, so
    of one that offers nothing just now every tool is."""

    def __init__(
        self, config: Config, callers: Iterable[Principal], registered: Iterable[str] = ()
    ) -> None:
        """`registered` are the agents of others that the configuration does not have."""
        callers = list(callers)
        self.servers = {entry.name for entry in config.mcp_servers}
        self.agents = {entry.name for entry in config.agents}
        self.remote = {entry.name for entry in config.a2a.external_agents} | set(registered)
        self.served = {caller.serves for caller in callers if caller.serves}
        self.users = {caller.label for caller in (*callers, OWNER, LOCAL)}
        self.roles = {"owner", *(role for caller in callers for role in caller.roles)}
        self.orgs = {"default", *(caller.org for caller in callers)}
        self.tools: dict[str, set[str]] = {}
        """What each target offers, by its id."""
        self._others: dict[str, str] = {}
        """The ids of what is no tool, by that of a tool of its name."""

    def add(self, tool: Tool) -> None:
        target = tool.target
        id = id_from_tool(tool)
        self.tools.setdefault(target.name, set()).add(id)
        if id != tool.name:
            self._others[fold_id(tool.name)] = id
        if target.traits.facts.type == "RemoteAgent":
            self.remote.add(target.name)

    def known(self, type: str, id: str) -> bool | str:
        """As `policy.lint.Known` says."""
        if type in ("Tool", "Skill"):
            return self._is_tool(type, id)
        places = {
            "User": self.users,
            "Role": self.roles,
            "Org": self.orgs,
            "Server": self.servers,
            "RemoteAgent": self.remote,
            "Agent": self.agents | self.served,
        }
        return id in places.get(type, ())

    def _is_tool(self, type: str, id: str) -> bool | str:
        name = split_id(id)[1]
        local = self.servers | self.agents | self.tools.keys()
        for target in self.remote if type == "Skill" else local - self.remote:
            if name.startswith((f"{target}.", f"{slug_of(target)}.")):
                offered = self.tools.get(target)
                if not offered or id in offered:
                    return True
        return self._others.get(id, False)


def slug_of(name: str) -> str:
    """What the skills of an agent begin with."""
    return re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")


def known_at(place: Path, now: float) -> EntityLookup:
    """From the configuration, the keys and the registry of a home."""
    config = load(place / "config.toml")
    records: tuple[KeyRecord, ...] = ()
    if (place / DATABASE).exists():
        store = KeyStore(place)
        try:
            records = store.list()
        finally:
            store.close()
    return Names(config, principals(config, records, now), registered(place)).known


def targets_at(place: Path) -> list[str]:
    """The names of all servers and agents of a home."""
    config = load(place / "config.toml")
    servers = [entry.name for entry in config.mcp_servers]
    agents = [entry.name for entry in config.agents]
    others = [entry.name for entry in config.a2a.external_agents]
    return [*servers, *agents, *others, *registered(place)]


def registered(place: Path) -> list[str]:
    """The agents of others that were registered while a hub ran; none where that cannot be read,
    which is told elsewhere."""
    if not (place / REGISTRY).exists():
        return []
    try:
        store = RegistryStore(place)
        try:
            return [str(row["entry"]["name"]) for row in store.list_agents()]
        finally:
            store.close()
    except (HubError, KeyError, TypeError):
        return []
