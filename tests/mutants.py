"""Takes each control of docs/security.md and each stage of the pipeline out, one by one, and
runs the tests that are named for it, which must fail. `make mutants` runs it.

`mutants.toml` has the mutants. Each is applied in a copy of the tree; the tests run there must pass
before and fail after. `tests/test_mutants.py` checks in every run of the tests that the table still
fits the code.
"""

from __future__ import annotations

import argparse
import os
import queue
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import tomllib
import venv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
TABLE = Path(__file__).with_suffix(".toml")
SECONDS = 300.0
"""For the tests of one mutant; tests that hang without a control have noticed its absence."""
COPIED = ("src", "tests", "docs", "examples", "faults", "pyproject.toml", "README.md", "locks")
PASSED, FAILED = 0, 1
"""Exit codes of pytest; others mean that the tests did not run."""


class Mutant(NamedTuple):
    of: str
    """The threat by its number, a stage of the pipeline by its class, or an attack by a word."""
    name: str
    file: str
    """Below src/dragoman."""
    old: str
    new: str
    tests: tuple[str, ...]
    """Below tests, as pytest names them."""

    @property
    def label(self) -> str:
        return f"{self.of}: {self.name}"

    def apply(self, text: str) -> str:
        """Raises `ValueError` unless the old text occurs once."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.label}: {text.count(self.old)} places in {self.file}")
        return text.replace(self.old, self.new)


def load_mutants(table: Path = TABLE) -> list[Mutant]:
    found = tomllib.loads(table.read_text(encoding="utf-8"))["mutant"]
    return [Mutant(**{**one, "tests": tuple(one["tests"])}) for one in found]


class Copy:
    """A copy of the tree in which one mutant at a time is alive."""

    def __init__(self, root: Path, passing: set[str]) -> None:
        """`passing` are the tests that were seen to pass without a mutant."""
        self._root = root
        self._passing = passing
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                ignored = shutil.ignore_patterns("__pycache__", "*.pyc", "build")
                shutil.copytree(source, root / name, symlinks=True, ignore=ignored)
            elif source.exists():
                shutil.copy(source, root / name)
        for environment in ROOT.glob(".venv-*"):
            (root / environment.name).symlink_to(environment)
        self._python = _build_environment(root)

    def run(self, tests: Sequence[str]) -> int | None:
        """Returns the exit code of pytest; None if it took too long."""
        command = [self._python, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
        env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        process = subprocess.Popen(
            [*command, *(f"tests/{one}" for one in tests)],
            cwd=self._root,
            env=env,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            return process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 9)
                process.wait()

    def judge(self, mutant: Mutant) -> str:
        """Returns what is wrong; empty if the tests notice the mutant."""
        file = self._root / "src" / "dragoman" / mutant.file
        before = file.read_text(encoding="utf-8")
        unknown = [one for one in mutant.tests if one not in self._passing]
        if unknown and self.run(unknown) != PASSED:
            return "the tests fail without it"
        self._passing.update(unknown)
        file.write_text(mutant.apply(before), encoding="utf-8")
        try:
            code = self.run(mutant.tests)
        finally:
            file.write_text(before, encoding="utf-8")
        if code == PASSED:
            return "SURVIVED"
        return "" if code in (FAILED, None) else f"the tests did not run (exit code {code})"


def _build_environment(root: Path) -> str:
    """Builds an environment with the packages of this one and the code of the copy, and returns its
    interpreter: tests start further ones by `sys.executable`, and clear their variables."""
    folder = root / ".venv"
    venv.EnvBuilder(symlinks=True).create(folder)
    packages = Path(sysconfig.get_path("purelib"))
    own = folder / packages.relative_to(sys.prefix)
    lines = [str(root / "src"), f"import site; site.addsitedir({str(packages)!r})"]
    (own / "copy.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
    for script in Path(sys.prefix, "bin").iterdir():
        copied = folder / "bin" / script.name
        if script.is_file() and not script.is_symlink() and not copied.exists():
            text = script.read_bytes().replace(
                f"{sys.prefix}/bin/".encode(), f"{folder}/bin/".encode()
            )
            copied.write_bytes(text)
            copied.chmod(0o755)
    return str(folder / "bin" / "python")


def judge_all(mutants: Sequence[Mutant], copies: int) -> dict[str, str]:
    """Judges the mutants, so many at a time; returns what is wrong by their labels."""
    waiting: queue.SimpleQueue[Mutant] = queue.SimpleQueue()
    for mutant in mutants:
        waiting.put(mutant)
    problems: dict[str, str] = {}
    passing: set[str] = set()

    def work(folder: str, number: int) -> None:
        copy = Copy(Path(folder) / str(number), passing)
        while True:
            try:
                mutant = waiting.get_nowait()
            except queue.Empty:
                return
            begun = time.monotonic()
            problem = copy.judge(mutant)
            if problem:
                problems[mutant.label] = problem
            seconds = time.monotonic() - begun
            print(f"{problem or 'noticed':10} {seconds:5.1f} s  {mutant.label}", flush=True)

    with tempfile.TemporaryDirectory(prefix="dgm") as folder:
        workers = [threading.Thread(target=work, args=(folder, number)) for number in range(copies)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    return problems


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("of", nargs="*", help="only mutants of these threats, stages or attacks")
    parser.add_argument("-j", type=int, default=2, help="how many at a time")
    options = parser.parse_args()
    mutants = [one for one in load_mutants() if not options.of or one.of in options.of]
    begun = time.monotonic()
    problems = judge_all(mutants, options.j)
    noticed = len(mutants) - len(problems)
    print(f"{noticed} of {len(mutants)} mutants were noticed in {time.monotonic() - begun:.0f} s")
    for label, problem in problems.items():
        print(f"{problem}: {label}")
    raise SystemExit(bool(problems))


if __name__ == "__main__":
    main()
