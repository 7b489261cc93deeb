"""Loads the definition of a workflow: YAML text to `Workflow`. Reads no files.

All problems of a definition are found in one pass, each with its line: of the YAML, of its form
(`schema`), and of what its steps and templates name (`step_graph`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from hashlib import sha256
from itertools import islice
from typing import Any

from dragoman.core.errors import InvalidInput
from dragoman.core.event_payloads import EVENT_NAMES
from dragoman.core.schedule_times import parse_timing
from dragoman.core.secret_rules import Author
from dragoman.core.structs import replace
from dragoman.workflows import schema
from dragoman.workflows.authorship import read_writer
from dragoman.workflows.durations import parse_duration
from dragoman.workflows.inputs import build_input
from dragoman.workflows.json_schema import find_violations, suggest
from dragoman.workflows.model import (
    COMPENSATE,
    EVENT,
    FAIL,
    FOREACH,
    MANUAL,
    NO_RETRY,
    ONCE,
    PARALLEL,
    SCHEDULE,
    WAIT,
    WEBHOOK,
    Input,
    Retry,
    Step,
    Trigger,
    Workflow,
)  # fmt: skip
from dragoman.workflows.step_graph import CheckedGraph, DefinedStep, StepGraph, TemplatedValue
from dragoman.workflows.templates import CLOSE, ENV, EVENT_DATA, OPEN, compile_value, has_template
from dragoman.workflows.yaml_reader import (
    MAX_PROBLEMS,
    EnoughProblems,
    Path,
    Problem,
    YamlDocument,
    YamlError,
    read_yaml,
)

MAX_NESTING = 5
"""Of steps inside steps."""


class InvalidDefinition(InvalidInput):
    """A definition cannot be used; `problems` say why, in the order of their lines."""

    def __init__(self, problems: Sequence[Problem], file: str = "") -> None:
        self.problems = tuple(problems)
        shown = [render_problem(one, file) for one in self.problems[:MAX_PROBLEMS]]
        if len(self.problems) > MAX_PROBLEMS:
            shown.append("and more")
        super().__init__("; ".join(shown))


def render_problem(problem: Problem, file: str = "") -> str:
    """Renders a problem with its file and line: `review.yaml:12: unknown key …`."""
    place = f"{file}:{problem.line}" if file else f"line {problem.line}"
    return f"{place}: {problem.message}"


def load_workflow(
    source: str, name: str, file: str = "", author: Author = Author.STORED
) -> Workflow:
    """Loads a definition. `name` is that of a workflow that has none of its own, `file` is for
    messages. Raises `InvalidDefinition`."""
    workflow, problems = _load(source, name)
    if workflow is None:
        raise InvalidDefinition(problems, file)
    writer = read_writer(source) if author is Author.API else None
    return replace(workflow, author=author, writer=writer)


def check_definition(source: str, name: str) -> list[Problem]:
    """Lists what is wrong with a definition, by line: the first `MAX_PROBLEMS` problems, and one
    more if there are others."""
    return _load(source, name)[1]


def _load(source: str, name: str) -> tuple[Workflow | None, list[Problem]]:
    try:
        document = read_yaml(source)
    except YamlError as error:
        return None, [error.problem]
    if document.value is None:
        return None, [Problem(1, 'the definition is empty; a workflow has "steps"')]
    found = find_violations(document.value, schema.WORKFLOW, schema.DEFINITIONS)
    violations = islice(found, MAX_PROBLEMS + 1)
    problems = [Problem(document.find_line(path), message) for path, message in violations]
    if not problems:
        loader = _DefinitionLoader(source, name, document)
        with suppress(EnoughProblems):
            if (workflow := loader.load()) is not None:
                return workflow, []
        problems = loader.problems
    return None, sorted(set(problems))


class _DefinitionLoader:
    """Builds the workflow of a definition that has the right form."""

    def __init__(self, source: str, name: str, document: YamlDocument) -> None:
        self._source = source
        self._document = document
        self._definition: Mapping[str, Any] = document.value
        self._name = str(self._definition.get("name", name))
        self.problems: list[Problem] = []

    def load(self) -> Workflow | None:
        """Returns None if there are `problems`."""
        found = self._definition
        inputs = self._load_inputs()
        triggers = self._load_triggers(inputs)
        graph = StepGraph(
            self._define_steps(found["steps"], ("steps",), ""),
            output=self._compile_all(found.get("output"), ("output",)),
            inputs=None if inputs is None else tuple(inputs),
            env=tuple(found.get("env", ())),
            agents=found.get("agents", {}),
        )
        checked = graph.check()
        for path, message in checked.problems:
            self._report(path, message)
        for trigger in triggers if checked.missing_agents else ():
            if trigger.kind != MANUAL:
                words = f'no agent for the reference "{checked.missing_agents[0]}"'
                self.problems.append(
                    Problem(trigger.line, f'a {trigger.kind} gives {words}; add it to "agents"')
                )
        steps = () if self.problems else self._build_steps(graph.list_level(""), graph, checked)
        workflow = Workflow(
            name=self._name,
            description=found.get("description", ""),
            inputs=inputs,
            triggers=triggers,
            steps=steps,
            output=found.get("output"),
            agents=dict(found.get("agents", {})),
            missing_agents=checked.missing_agents,
            env=tuple(found.get("env", ())),
            expose=found.get("expose", False),
            concurrency=found.get("concurrency", 10),
            timeout_secs=self._load_duration(found, ("timeout",)),
            digest=sha256(self._source.encode("utf-8", "replace")).hexdigest(),
            source=self._source,
        )
        return None if self.problems else workflow

    def _report(self, path: Path, message: str) -> None:
        self.problems.append(Problem(self._document.find_line(path), message))
        if len(self.problems) > MAX_PROBLEMS:
            raise EnoughProblems

    def _compile_all(self, value: Any, path: Path) -> tuple[TemplatedValue, ...]:
        """Parses each text of a value by itself, so that each has its line."""
        return tuple(self._compile_each(value, path))

    def _compile_each(self, value: Any, path: Path) -> Iterator[TemplatedValue]:
        if isinstance(value, Mapping):
            for key, inner in value.items():
                yield from self._compile_each(inner, (*path, key))
        elif isinstance(value, list):
            for index, inner in enumerate(value):
                yield from self._compile_each(inner, (*path, index))
        elif has_template(value):
            try:
                yield TemplatedValue(path, compile_value(value).references)
            except InvalidInput as error:
                self._report(path, str(error))

    def _load_duration(self, owner: Mapping[str, Any], path: Path) -> float | None:
        value = owner.get(str(path[-1]))
        if value is None:
            return None
        try:
            return parse_duration(value)
        except InvalidInput as error:
            self._report(path, f'"{path[-1]}": {error}')
            return None

    # --- inputs and triggers ---------------------------------------------------------------------

    def _load_inputs(self) -> dict[str, Input] | None:
        declared = self._definition.get("inputs")
        if declared is None:
            return None
        found = {}
        for name, written in declared.items():
            try:
                found[name] = build_input(name, written)
            except InvalidInput as error:
                self._report(("inputs", name), str(error))
        return found

    def _load_triggers(self, inputs: Mapping[str, Input] | None) -> tuple[Trigger, ...]:
        found = self._definition
        if "trigger" in found and "triggers" in found:
            self._report(("triggers",), 'use "trigger" or "triggers", not both')
        written: list[tuple[Path, Any]] = [
            (("triggers", index), one) for index, one in enumerate(found.get("triggers", ()))
        ]
        if "trigger" in found:
            written.append((("trigger",), found["trigger"]))
        return tuple(self._load_trigger(one, path, inputs) for path, one in written)

    def _load_trigger(
        self, written: Any, path: Path, inputs: Mapping[str, Input] | None
    ) -> Trigger:
        line = self._document.find_line(path)
        if written == MANUAL or written["type"] == MANUAL:
            return Trigger(kind=MANUAL, line=line)
        kind = written["type"]
        if kind == EVENT:
            self._check_event(written["event"], (*path, "event"))
        given = written.get("inputs", {})
        self._check_trigger_inputs(given, (*path, "inputs"), inputs, kind)
        zone = written.get("zone", "UTC")
        return Trigger(
            kind=kind,
            secret=written.get("secret", ""),
            schedule=self._load_schedule(written, zone, path) if kind == SCHEDULE else "",
            zone=zone,
            catch_up=written.get("catchUp", ONCE),
            event=written.get("event", ""),
            match=written.get("match", {}),
            inputs=given,
            line=line,
        )

    def _check_event(self, name: str, path: Path) -> None:
        known = sorted(EVENT_NAMES.values())
        if name not in known and not has_template(name):
            self._report(path, f'the hub has no event "{name[:80]}"; {suggest(name, known)}')

    def _load_schedule(self, written: Mapping[str, Any], zone: str, path: Path) -> str:
        key = "cron" if "cron" in written else "every"
        text = written["cron"] if key == "cron" else f"every {written['every']}"
        try:
            if parse_timing(text, zone, False).once:
                raise InvalidInput(f'the schedule "{text[:60]}" runs only once')
        except InvalidInput as error:
            self._report((*path, "zone" if "time zone" in str(error) else key), str(error))
        return str(text)

    def _check_trigger_inputs(
        self, given: Mapping[str, Any], path: Path, inputs: Mapping[str, Input] | None, kind: str
    ) -> None:
        for name in given:
            if inputs is not None and name not in inputs:
                hint = suggest(name, list(inputs))
                self._report((*path, name), f'the workflow has no input "{name}"; {hint}')
        for value in self._compile_all(given, path):
            for reference in value.references:
                if kind not in (WEBHOOK, EVENT) or reference.root != EVENT_DATA:
                    can = f"can read {EVENT_DATA} alone" if kind != SCHEDULE else "has no templates"
                    self._report(value.path, f'"{reference}" is unknown here: a {kind} {can}')
        if inputs is not None and (given or kind == SCHEDULE):
            for name, one in inputs.items():
                if one.required and name not in given:
                    self._report(path, f'the trigger does not give the input "{name}"')

    # --- steps -----------------------------------------------------------------------------------

    def _define_steps(
        self, written: Sequence[Any], path: Path, within: str, depth: int = 0
    ) -> list[DefinedStep]:
        """Lists the steps of a level and those inside them."""
        found = []
        for index, one in enumerate(written):
            at = (*path, index)
            config = one.get("config", {})
            found.append(self._define_step(one, config, at, within))
            if one["nodeId"] in (FOREACH, PARALLEL):
                inner = (*at, "config", "steps")
                if depth >= MAX_NESTING:
                    self._report(inner, f"steps are nested more than {MAX_NESTING} levels deep")
                    continue
                found += self._define_steps(config["steps"], inner, one["id"], depth + 1)
        return found

    def _define_step(
        self, one: Mapping[str, Any], config: Mapping[str, Any], at: Path, within: str
    ) -> DefinedStep:
        own = {key: value for key, value in config.items() if key != "steps"}
        if one["nodeId"] == WAIT:
            self._check_until(own, at)
            if "event" in own:
                self._check_event(own["event"], (*at, "config", "event"))
        values = self._compile_all(own, (*at, "config"))
        self._check_naming(values, (*at, "config"))
        values += self._compile_all(self._load_condition(one, at), (*at, "when"))
        depends_on = one.get("dependsOn", ())
        on_error = one.get("onError", FAIL)
        return DefinedStep(
            id=one["id"],
            node=one["nodeId"],
            within=within,
            path=at,
            depends_on=(depends_on,) if isinstance(depends_on, str) else tuple(depends_on),
            compensate_by=on_error[COMPENSATE] if isinstance(on_error, Mapping) else "",
            values=values,
            written=one,
        )

    def _check_naming(self, values: Sequence[TemplatedValue], config: Path) -> None:
        """What names something is recorded and shown: no value of a variable may get there."""
        for value in values:
            member = value.path[len(config)]
            for reference in value.references:
                if reference.root == ENV and member in schema.NAMING:
                    words = f'"{member}" is recorded and shown'
                    self._report(
                        value.path, f'"{reference}" is a secret, and {words}: write a name'
                    )

    def _check_until(self, config: Mapping[str, Any], at: Path) -> None:
        until = config.get("until")
        if until is None or has_template(until):
            return
        try:
            has_zone = datetime.fromisoformat(until).tzinfo is not None
        except ValueError:
            has_zone = False
        if not has_zone:
            words = '"until" must be a time with its zone, such as 2027-01-31T09:00:00Z'
            self._report((*at, "config", "until"), words)

    def _load_condition(self, one: Mapping[str, Any], at: Path) -> Any:
        """Returns `when` as one template: the braces may be left out."""
        when = one.get("when")
        if not isinstance(when, str):
            return when
        text = when.strip()
        if OPEN not in text:
            return f"{OPEN} {text} {CLOSE}"
        if not (text.startswith(OPEN) and text.endswith(CLOSE)) or text.count(OPEN) > 1:
            words = f'"when" must be one template and no other text, such as {OPEN} … {CLOSE}'
            self._report((*at, "when"), words)
        return text

    def _build_steps(
        self, level: Sequence[DefinedStep], graph: StepGraph, checked: CheckedGraph
    ) -> tuple[Step, ...]:
        return tuple(self._build_step(one, graph, checked) for one in level)

    def _build_step(self, one: DefinedStep, graph: StepGraph, checked: CheckedGraph) -> Step:
        written = one.written
        on_error = written.get("onError", FAIL)
        config = written.get("config", {})
        return Step(
            id=one.id,
            node=one.node,
            config={key: value for key, value in config.items() if key != "steps"},
            body=self._build_steps(graph.list_level(one.id), graph, checked),
            depends_on=checked.depends_on[one.id],
            when=self._load_condition(written, one.path),
            retry=self._load_retry(written.get("retry"), one.path),
            timeout_secs=self._load_duration(written, (*one.path, "timeout")),
            on_error=COMPENSATE if isinstance(on_error, Mapping) else on_error,
            compensate_by=one.compensate_by,
            repeatable=written.get("repeatable", False),
            line=self._document.find_line(one.path),
        )

    def _load_retry(self, written: Any, at: Path) -> Retry:
        if written is None:
            return NO_RETRY
        if isinstance(written, int):
            return Retry(attempts=written)
        backoff = self._load_duration(written, (*at, "retry", "backoff"))
        longest = self._load_duration(written, (*at, "retry", "maxBackoff"))
        return Retry(
            attempts=written["attempts"],
            backoff_secs=NO_RETRY.backoff_secs if backoff is None else backoff,
            max_backoff_secs=NO_RETRY.max_backoff_secs if longest is None else longest,
        )
