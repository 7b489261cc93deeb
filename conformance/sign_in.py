"""Sign-in at the hub itself: the official suite's scenarios for authorization servers, and the
Inspector's CLI, which connects by URL alone. A scripted browser plays the user."""

import contextlib
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.peers.browser import HTTP, PASSWORD, App, Browser

from conformance.paths import HUB, INSPECTOR, LOGS, NODE, PRERELEASE
from conformance.peers import ERAS, QUESTIONS, SECONDS, Question, Result, json_text, slug
from conformance.processes import Child, Command, environment, free_port, started, wait_for
from conformance.targets import FIXTURE, fixture, hub, remote

KEY = "k" * 32
SETTINGS = f'api_key = "{KEY}"\n\n[auth.server]\nenabled = true\n\n'
_URL = re.compile(r"http://\S+/oauth/authorize\?\S+")


def run_sign_in(only: str) -> list[Result]:
    if not re.search(only, "sign-in"):
        return []
    with contextlib.ExitStack() as stack:
        upstream = stack.enter_context(fixture("sign-in", [*FIXTURE, "http"]))
        url, home = stack.enter_context(
            hub("sign-in", remote(upstream), settings=SETTINGS, key=KEY)
        )
        add_user(home)
        base = url.removesuffix("/mcp")
        found = [run_suite_scenario(base, name) for name in SCENARIOS]
        for era in ERAS:
            state = LOGS / f"inspector-{era}"
            found += [inspect(url, era, question, state) for question in QUESTIONS[:2]]
    return found


def add_user(home: Path) -> None:
    subprocess.run(
        [str(HUB), "users", "add", "anna", "--password", "--home", str(home)],
        input=f"{PASSWORD}\n".encode(),
        env=environment(),
        capture_output=True,
        timeout=SECONDS,
        check=True,
    )


SCENARIOS = ("authorization-server-metadata-endpoint", "authorization-code-grant")


def run_suite_scenario(base: str, scenario: str) -> Result:
    """The second needs the metadata of the first, so that both are run each time."""
    name = f"official suite, authorization server: {scenario}"
    port = free_port()
    app = App(base, redirect_uri=f"http://127.0.0.1:{port}/callback").register("Suite")
    command: Command = [NODE, PRERELEASE, "authorization", "--url", base, "--client-id", app.id]
    command += ["--resource", f"{base}/mcp", "--port", str(port)]
    output = LOGS / f"authorization-{slug(scenario)}"
    command += ["--output-dir", output]
    with started(f"suite-{slug(scenario)}", command) as child:
        consent(child, base)
        code = wait_ended(child)
        said = child.said.read_text(encoding="utf-8")
    results = sorted(output.rglob("checks.json"))
    mine = [file for file in results if scenario in str(file)]
    texts = [file.read_text(encoding="utf-8") for file in mine]
    if not texts or any('"FAILURE"' in text or '"SKIPPED"' in text for text in texts):
        return Result(name, f"exit code {code}: {said.strip()[-300:]}")
    return Result(name, None)


def inspect(url: str, era: str, question: Question, state: Path) -> Result:
    """Each run signs in, since tokens stay in the memory of the Inspector without a keyring; the
    second one uses the registration of the first, with another port."""
    name = f"Inspector by URL alone, {era}: {' '.join((question.method, *question.arguments[:2]))}"
    callback = f"http://127.0.0.1:{free_port()}/oauth/callback"
    command: Command = [NODE, INSPECTOR, "--cli", url, "--protocol-era", era]
    command += ["--callback-url", callback, "--method", question.method, *question.arguments]
    command += ["--format", "json", "-q"]
    state.mkdir(exist_ok=True)
    home = {"HOME": str(state), "BROWSER": "true", "MCP_AUTO_OPEN_ENABLED": "true"}
    with started(f"inspector-{slug(name)}", command, home) as child:
        consent(child, url.removesuffix("/mcp"))
        code = wait_ended(child)
        out = child.said.read_text(encoding="utf-8")
        if code:
            return Result(name, f"exit code {code}: {child.ending()}")
    if question.expected not in json_text(out):
        return Result(name, f"{question.expected!r} is not in the answer: {out.strip()[:200]}")
    return Result(name, None)


def consent(child: Child, base: str) -> None:
    """Opens the URL that the program prints, signs in, consents and follows the redirect."""
    url = wait_for(child, _find_url(child))
    with Browser(base) as browser:
        HTTP.get(browser.allow(browser.sign_in("anna", url=url)))


def _find_url(child: Child) -> Callable[[], str]:
    def find() -> str:
        texts = [file.read_text(encoding="utf-8") for file in (child.said, child.log)]
        found = _URL.search("\n".join(texts))
        return found[0] if found else ""

    return find


def wait_ended(child: Child) -> int:
    return child.process.wait(SECONDS)
