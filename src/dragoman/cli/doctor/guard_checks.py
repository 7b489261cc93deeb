"""`doctor` on what guards the road: policies, what is held, keys of servers and agents."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from dragoman.cli.base.output import clean
from dragoman.cli.doctor.findings import DoctorContext, Finding
from dragoman.core.errors import HubError

MANY = 5
"""So many are named; of more, how many there are."""


def check_policies(found: DoctorContext) -> Iterator[Finding]:
    if found.config is None or not found.home.is_dir():
        return
    from dragoman.app.app import policy_folder

    folder = policy_folder.Folder(found.home / found.config.policy.folder)
    if folder.path.exists() and not folder.exists:
        said = f"{folder.path} is no folder, so no hub starts"
        yield Finding("policies", "problem", said, "move it away, or correct [policy] folder")
        return
    if not folder.exists:
        yield Finding("policies", "ok", "those that come with the hub")
        return
    try:
        # A running hub knows more names, but says nothing of files that it has not taken up.
        judged = policy_folder.judge(
            folder.texts(), policy_folder.known_at(found.home, time.time())
        )
    except HubError as error:
        yield Finding("policies", "problem", str(error), "correct them: dragoman policy check")
        return
    errors = [each for each in judged["findings"] if each["level"] == "error"]
    for each in errors[:MANY]:
        said = f"{_render_position(each)} {each['message']}"
        after = "the running hub goes on with what it had" if found.daemon else "no hub starts so"
        yield Finding("policies", "problem", f"{clean(said)}; {after}", "dragoman policy check")
    if errors:
        return
    for each in judged["findings"][:MANY]:
        said = f"{_render_position(each)} {each['message']}"
        fix = "correct the name, or let it be if that is still to come"
        yield Finding("policies", "warning", clean(said), fix)
    if found.config.policy.mode == "shadow":
        said = "they are recorded and not enforced: [policy] mode is shadow"
        yield Finding("policies", "warning", said, 'mode = "enforce", once the audit looks right')
    if not judged["policies"]:
        said = f"{folder.path} has none, so nothing is permitted, to you neither"
        yield Finding("policies", "problem", said, "write some there: dragoman policy --help")
        return
    yield Finding("policies", "ok", f"{judged['policies']} in {folder.path} can be used")


def _render_position(finding: dict[str, Any]) -> str:
    line = f":{finding['line']}" if finding["line"] else ""
    return f"{finding['file']}{line}:" if finding["file"] else ""


def check_pins(found: DoctorContext) -> Iterator[Finding]:
    """Known only to a hub that runs."""
    waiting = [pin for pin in found.pins if pin["state"] == "held"]
    for pin in waiting[:MANY]:
        name = clean(pin["name"])
        is_shown = pin["kind"] in ("resource", "template") and pin["approved_at"]
        done = "is shown as it was approved" if is_shown else "is neither listed nor called"
        said = f"{pin['kind']} {name} of {clean(pin['target'])} {done}"
        yield Finding("held", "warning", said, f'look, then decide: dragoman pins diff "{name}"')
    if len(waiting) > MANY:
        said = f"{len(waiting) - MANY} more are held"
        yield Finding("held", "warning", said, "dragoman pins list")
    added = [pin for pin in found.pins if pin["state"] == "new"]
    for target, count in Counter(str(pin["target"]) for pin in added).most_common(MANY):
        first = next(clean(pin["name"]) for pin in added if pin["target"] == target)
        said = f"{clean(target)} has added {count} since it was first listed, such as {first}"
        fix = f'look at them: dragoman pins approve --target "{clean(target)}"'
        yield Finding("added", "info", said, fix)


def check_names(found: DoctorContext) -> Iterator[Finding]:
    """Targets whose tools could be listed under one name."""
    if found.config is None or not found.home.is_dir():
        return
    from dragoman.app.app import policy_folder
    from dragoman.config import find_overlaps

    for one, other in list(find_overlaps(policy_folder.targets_at(found.home)))[:MANY]:
        said = (
            f'a tool of "{one}" can be spelled as those of "{other}" are listed; each name stays '
            "with the tool that had it first"
        )
        yield Finding("names", "info", clean(said), "rename one of the two to tell them apart")


def check_target_keys(found: DoctorContext) -> Iterator[Finding]:
    """A key that was made for a server or agent which is not there knows no ring."""
    if found.config is None or not (found.home / "hub.db").exists():
        return
    from dragoman.app.app import KeyStore, policy_folder

    known = policy_folder.targets_at(found.home)
    store = KeyStore(found.home)
    try:
        records = store.list()
    finally:
        store.close()
    now = time.time()
    for record in records:
        if record.target and record.state(now) == "active" and record.target not in known:
            said = f'key "{record.name}" is for "{record.target}", and nothing here is called so'
            fix = f"dragoman keys revoke {record.name}, and make one for the right name"
            yield Finding("keys", "warning", clean(said), fix)
