"""`agents new`, `agents check`, and local agents in `agents list` and `agents show`."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import pytest
from tests.cli.terminal import Terminal
from tests.live.module_hub import until
from tests.peers.process import server_entry
from tests.peers.scripted_model import running_model, say

from dragoman.agents import manifest
from dragoman.cli.local_agents import TEMPLATES

CONFIG = "[server]\nport = 0\n"


def write(terminal: Terminal, name: str, text: str, file: str = "agent.toml") -> Path:
    folder = terminal.home / "agents" / name
    folder.mkdir(parents=True, exist_ok=True)
    terminal.home.chmod(0o700)
    (folder / file).write_text(text, encoding="utf-8")
    return folder / file


@pytest.mark.promise("Q4")
@pytest.mark.parametrize("template", TEMPLATES)
def test_new_writes_a_private_manifest_that_loads(terminal: Terminal, template: str) -> None:
    done = terminal.quick("agents", "new", "my-helper", "--from", template)
    file = terminal.home / "agents" / "my-helper" / "agent.toml"
    assert done.code == 0 and f"wrote {file}\n" in done.out
    assert ('"OPENAI_API_KEY" is not set' in done.err) is (template != "script")
    loaded = manifest.load_manifest(file)
    assert loaded.manifest.name == "my-helper" and not loaded.warnings
    text = file.read_text(encoding="utf-8")
    assert "dragoman agents check my-helper" in text and "NAME" not in text
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert terminal.quick("agents", "check", "my-helper").code == 0


def test_every_shipped_template_is_offered() -> None:
    folder = Path(manifest.__file__).parent / "templates"
    assert {file.stem for file in folder.iterdir()} == set(TEMPLATES)


def test_manifests_in_the_documentation_load(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "agents.md").read_text(encoding="utf-8")
    examples = re.findall(r"^```toml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    assert examples
    for text in examples:
        assert not manifest.parse_manifest(text, tmp_path / "x" / "agent.toml").warnings


def test_new_writes_the_model_that_was_asked_for(terminal: Terminal) -> None:
    assert terminal.quick("agents", "new", "x", "--model", "ollama/qwen3:4b").code == 0
    loaded = manifest.load_manifest(terminal.home / "agents" / "x" / "agent.toml")
    assert (loaded.manifest.model.provider, loaded.manifest.model.model) == ("ollama", "qwen3:4b")
    assert loaded.manifest.model.system_prompt
    for wrong in ("ollama", "/x", 'a/"'):
        done = terminal.quick("agents", "new", "y", "--model", wrong)
        assert done.code == 2 and "PROVIDER/MODEL" in done.err


def test_new_overwrites_nothing(terminal: Terminal) -> None:
    file = write(terminal, "mine", "{}", "agent.json")
    spaced = terminal.quick("agents", "new", "A Name")
    assert "dragoman agents check 'A Name'; dragoman chat 'A Name'" in spaced.out
    done = terminal.quick("agents", "new", "mine")
    assert done.code == 1 and f'there is an agent "mine" already: {file}' in done.err
    assert [one.name for one in file.parent.iterdir()] == ["agent.json"]
    for wrong in ("../up", ".hidden", "a/b", "", "x" * 65):
        assert terminal.quick("agents", "new", wrong).code == 2, wrong
    assert terminal.quick("agents", "new", "x", "--from", "novel").code == 2


BROKEN = {
    'descriptions = "x"\n': 'unknown field "descriptions"; did you mean "description"?',
    "[limits]\nturns = 0\n": 'the field "limits.turns": Expected `int` >= 1',
    "[[script]]\nsay = 1\n": 'the field "script[0].say": Expected `str`, got `int`',
    "name = \n": "cannot be parsed: ",
    '[[script]]\nwhen = "("\nsay = "x"\n': '"when" is not a regular expression',
    '[model]\nprovider = "opnai"\nmodel = "x"\n': 'unknown model provider "opnai": use openai, ',
    "[model]\n": "model.model is missing: name the model",
    '[model]\nmodel = "x"\napi_key_env = "GONE"\n': 'the variable "GONE" is not set: ',
    '[model]\nmodel = "x"\nbase_url = "ftp://x"\n': "ftp://x",
    'schedule = "sometimes"\n[model]\nmodel = "x"\n': 'the schedule "sometimes" is invalid',
}


def test_check_names_file_field_and_fix(terminal: Terminal) -> None:
    for text, words in BROKEN.items():
        file = write(terminal, "a", text)
        done = terminal.quick("agents", "check")
        assert done.code == 1 and f"a: error  {file}\n" in done.out, text
        assert words in done.out.split("  error    ")[1], done.out


def test_check_reports_every_agent_and_fails_if_one_is_invalid(terminal: Terminal) -> None:
    text = 'schedule = "hourly"\n[model]\nmodel = "m"\nbase_url = "http://127.0.0.1:9/v1"\n'
    write(terminal, "good", text)
    done = terminal.quick("agents", "check")
    assert done.code == 0 and "  schedule hourly (UTC): This is a scheduled run." in done.out
    write(terminal, "bad", "x = 1\n")
    found = terminal.quick("agents", "check", "--json")
    assert found.code == 1 and found.json()["ok"] is False
    errors = {one["name"]: one["errors"] for one in found.json()["agents"]}
    assert errors["good"] == [] and "unknown field" in errors["bad"][0]
    assert terminal.quick("agents", "check", "good").code == 0
    done = terminal.quick("agents", "check", "goood")
    assert done.code == 5 and 'did you mean "good"?' in done.err


def test_check_says_whether_the_key_is_set(terminal: Terminal) -> None:
    write(
        terminal, "a", '[model]\nmodel = "m"\n[[fallback_models]]\nprovider = "ollama"\nmodel="l"'
    )
    done = terminal.quick("agents", "check")
    assert "openai/m at https://api.openai.com/v1, key in OPENAI_API_KEY (not set)" in done.out
    assert "  model    ollama/l at http://127.0.0.1:11434/v1\n" in done.out
    assert f"put the line OPENAI_API_KEY=… into {terminal.home}/env" in done.out
    env = terminal.home / "env"
    env.write_text("OPENAI_API_KEY=sk-secret\n", encoding="utf-8")
    env.chmod(0o600)
    done = terminal.quick("agents", "check")
    assert "OPENAI_API_KEY (set)" in done.out and "warning" not in done.out
    assert "sk-secret" not in done.out + done.err


def test_running_hub_takes_a_new_key_up(terminal: Terminal) -> None:
    terminal.configure(config=CONFIG)
    with running_model() as model:
        text = f'[model]\nmodel = "m"\nbase_url = "{model.url}"\napi_key_env = "MY_KEY"\n'
        write(terminal, "a", text)
        write(terminal, "b", text.replace('api_key_env = "MY_KEY"\n', ""))
        terminal.up()
        model.rules.append(("", say("yes")))
        assert "MY_KEY" in terminal.quick("agents", "--json").json()["failed"]["a"]
        assert terminal.quick("chat", "b", "hi").out == "yes\n"
        for key in ("one", "two"):
            env = terminal.home / "env"
            env.touch(mode=0o600)
            env.write_text(f"MY_KEY={key}\nOPENAI_API_KEY=other\n", encoding="utf-8")
            wanted = f"Bearer {key}"

            def has_key(wanted: str = wanted) -> bool:
                done = terminal.quick("chat", "a", "hi")
                return done.code == 0 and model.headers[-1].get("authorization") == wanted

            until(has_key)
        assert terminal.quick("chat", "b", "hi").out == "yes\n"
        assert "authorization" not in model.headers[-1], "the key of OpenAI is for OpenAI"


def test_check_warns_of_fields_without_a_meaning(terminal: Terminal) -> None:
    write(terminal, "a", 'module = "builtin:chat"\n[[script]]\nsay = "x"\n')
    done = terminal.quick("agents", "check")
    assert done.code == 0 and '  warning  the field "module" has no meaning here\n' in done.out


def test_check_warns_of_grants_that_are_any_command(terminal: Terminal) -> None:
    text = '[capabilities]\nshell = ["*", "git *", "git log *"]\n[[script]]\nsay = "x"\n'
    write(terminal, "a", text)
    done = terminal.quick("agents", "check")
    assert done.code == 0 and done.out.count("any command in effect") == 2
    assert '  warning  the grant "git *" of shell is any command in effect: "git" runs' in done.out


@pytest.mark.promise("P1")
def test_running_hub_has_a_new_agent_at_once_and_knows_its_tools(terminal: Terminal) -> None:
    terminal.configure(server_entry("hello", "faulty_server", "ok"), config=CONFIG)
    terminal.up()
    done = terminal.quick("agents", "new", "parrot", "--from", "script")
    assert 'the running hub has the agent "parrot"' in done.out
    assert terminal.quick("call", "parrot.message", "message=hi").out.startswith("You said: hi\n")
    file = terminal.home / "agents" / "parrot" / "agent.toml"
    text = file.read_text(encoding="utf-8")
    text = text.replace("tools = []", 'tools = ["hello.*", "helo.echo", "file_read"]')
    text = text.replace("agents = []", 'agents = ["nobody"]')
    file.write_text(text, encoding="utf-8")

    def check() -> str:
        return terminal.quick("agents", "check", "parrot").out

    until(lambda: "mcp_hello_echo" in check())
    assert 'capabilities.agents: "nobody" matches nothing now' in check()
    assert '"file_read" matches nothing' not in check()  # although clients do not see it
    wrong = 'capabilities.tools: "helo.echo" matches nothing now; did you mean "hello.echo"?'
    assert wrong in check()
    shown = terminal.quick("agents", "show", "parrot")
    assert "may call" in shown.out and "mcp_hello_echo" in shown.out and str(file) in shown.out
    write(terminal, "broken", "x = 1\n")
    until(lambda: "broken" in terminal.quick("agents", "--json").json()["failed"])
    listed = terminal.quick("agents")
    assert listed.out.startswith("LOCAL AGENT") and 'unknown field "x"' in listed.out
    assert "parrot" in terminal.quick("agents", "--json").json()["local"]
    refused = terminal.quick("agents", "remove", "parrot")
    assert refused.code == 2 and str(file) in refused.err and file.exists()
