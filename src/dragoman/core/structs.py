"""Immutable records: msgspec's, which take a fifth of the time of a dataclass to create.

`core` imports a third party here and in `schedule_times` only (decisions 0071 and 0091).
"""

from __future__ import annotations

from msgspec import Struct, field
from msgspec.structs import asdict, replace

__all__ = ["Struct", "asdict", "field", "replace"]
