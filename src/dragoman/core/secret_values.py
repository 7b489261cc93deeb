"""Secrets that data may contain: replaced by their references in what is shown and stored.

`${secret env:NAME}` stands for a value in stored data, `${secret json:env:NAME}` for its spelling
in JSON text. Text that looks so by itself gets one more `text:`, so that it never becomes a secret.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

MIN_CHARS: Final = 6
"""Shorter values are no secrets; to replace them would spoil ordinary text."""
_BEGIN: Final = "${secret "


class SecretValues:
    """The values of some variables. Immutable."""

    def __init__(self, values: Mapping[str, str], names: Iterable[str] = ()) -> None:
        """`names` are the variables whose references mean their values, also while they are not
        set."""
        known = {*values, *names}
        own = " ".join(f"{_BEGIN}json:text:env:{name}}}" for name in known)
        self._by_mark: dict[str, str] = {}
        for name, value in values.items():
            if len(value) < MIN_CHARS or value in own:
                continue
            self._by_mark[f"env:{name}"] = value
            spelled = json.dumps(value)[1:-1]
            if spelled != value:
                self._by_mark[f"json:env:{name}"] = spelled
        self._marks = {value: f"{_BEGIN}{mark}}}" for mark, value in self._by_mark.items()}
        longest = sorted(self._marks, key=len, reverse=True)  # a value may contain another one
        self._values = re.compile("|".join(map(re.escape, longest)) or "(?!)")
        either = "|".join(map(re.escape, known)) or "(?!)"
        self._written = re.compile(rf"\$\{{secret ((?:text:)*)((?:json:)?env:(?:{either}))\}}")

    def __bool__(self) -> bool:
        return bool(self._marks)

    def mask(self, value: Any) -> Any:
        """Replaces the values in all texts of a JSON value by their references, for people."""
        return _map_texts(value, self._mask_text) if self._marks else value

    def seal(self, value: Any) -> Any:
        """The same for a store, so that `unseal` restores the value."""
        return _map_texts(value, self._seal_text)

    def unseal(self, value: Any) -> Any:
        return _map_texts(value, self._unseal_text)

    def find_in(self, value: Any) -> set[str]:
        """Returns the names of the variables whose values are in the texts of a JSON value."""
        found: set[str] = set()

        def look(text: str) -> str:
            for mark, secret in self._by_mark.items():
                if secret in text:
                    found.add(mark.rpartition(":")[2])
            return text

        if self._by_mark:
            _map_texts(value, look)
        return found

    def _mask_text(self, text: str) -> str:
        if any(secret in text for secret in self._marks):  # rarely: the pattern costs more
            text = self._values.sub(lambda match: self._marks[match[0]], text)
        return text

    def _seal_text(self, text: str) -> str:
        if _BEGIN in text:
            text = self._written.sub(lambda match: f"{_BEGIN}text:{match[1]}{match[2]}}}", text)
        return self._mask_text(text)

    def _unseal_text(self, text: str) -> str:
        return self._written.sub(self._restore, text) if _BEGIN in text else text

    def _restore(self, match: re.Match[str]) -> str:
        escaped, mark = match[1], match[2]
        if escaped:
            return f"{_BEGIN}{escaped.removeprefix('text:')}{mark}}}"
        return self._by_mark.get(mark, match[0])


NO_SECRETS: Final = SecretValues({})


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """Changes the texts of a JSON value, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(str(key)): _map_texts(one, change) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_map_texts(one, change) for one in value]
    return value
