"""Dataclasses that are created for every call.

Frozen for the type checker only: change them with `replace`. Frozen at run time, each would take
three times as long to create.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as record
else:
    from dataclasses import dataclass

    def record(*, frozen, **how):
        return dataclass(**how)


__all__ = ["record"]
