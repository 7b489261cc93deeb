"""The environment of the process, with the secrets that were taken out of it.

Code in the hub and the programs that it starts see `os.environ`; the hub itself reads its variables
here, also again when its configuration changes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

_WITHHELD: dict[str, str] = {}
"""Variables that were removed from `os.environ`, with their values."""


def read_environment() -> dict[str, str]:
    """Returns all variables, those included that `withhold_variables` has removed."""
    return {**_WITHHELD, **os.environ}


def withhold_variables(names: Iterable[str]) -> None:
    """Removes these variables from `os.environ`, and puts back those of earlier calls that are not
    among them."""
    wanted = frozenset(names)
    for name in [name for name in _WITHHELD if name not in wanted]:
        os.environ.setdefault(name, _WITHHELD.pop(name))
    for name in wanted & os.environ.keys():
        _WITHHELD[name] = os.environ.pop(name)
