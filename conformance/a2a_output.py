"""Output of a counterpart program: one JSON line per check. Standard library only."""

import contextlib
import json
from collections.abc import Iterator


@contextlib.contextmanager
def trying(name: str) -> Iterator[None]:
    """One thing: it is good if nothing is raised."""
    problem = None
    try:
        yield
    except Exception as error:
        first = (str(error).strip() or "no words").splitlines()[0]
        problem = f"{type(error).__name__}: {first[:300]}"
    print(json.dumps({"name": name, "problem": problem}), flush=True)


def expect(good: bool, came: object) -> None:
    if not good:
        raise AssertionError(f"came {str(came)[:250]}")
