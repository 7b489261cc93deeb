"""Dataclasses that are made for every call.

The type checker holds them to be frozen, and so does whoever writes code: they are changed with
`replace`. To enforce that at run time too would make each take three times as long to make.
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
