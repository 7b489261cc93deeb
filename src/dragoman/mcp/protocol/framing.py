"""Stdio bytes to messages and back, and the ids in them; no I/O.

Two framings, recognised message by message: newline-delimited, which is MCP's own, and
`Content-Length` headers, which some clients took from LSP. Time is linear in the bytes and memory
is bounded by the limit, whatever comes and however it is cut into pieces: what `feed` returns
depends on the bytes alone.
"""

from __future__ import annotations

import json
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Literal, TypeAlias

    Framing: TypeAlias = Literal["line", "length"]
    Id: TypeAlias = str | int
    Piece: TypeAlias = "Frame | OversizedFrame | MalformedFrame | Unrecoverable"

CHOOSE_VIEW = "dragoman/view"
"""The method of the first message of a relay that was started with a view."""
LINE: Framing = "line"
LENGTH: Framing = "length"
LIMIT = 10 * 1024 * 1024
DRAIN_LIMIT = 256 * 1024 * 1024
HEADER_LIMIT = 8 * 1024
PREFIX = 4 * 1024
SUFFIX = 256

_BOM = b"\xef\xbb\xbf"
_HEADER = re.compile(rb"([A-Za-z][A-Za-z0-9-]*)[ \t]*:(.*)")
_NUMBER = re.compile(rb"[0-9]{1,15}")
_BLANK = re.compile(rb"[ \t\r\n]*\n")


class Frame:
    __slots__ = ("framing", "payload")

    def __init__(self, payload: bytes, framing: Framing) -> None:
        self.payload = payload
        self.framing = framing

    def __repr__(self) -> str:
        return f"Frame({self.payload[:80]!r}, {self.framing!r})"


class OversizedFrame:
    """A message over the limit, discarded; `prefix` is its beginning, for `find_id`, and `suffix`
    its end, for `find_id_at_end`."""

    __slots__ = ("framing", "prefix", "size", "suffix")

    def __init__(self, prefix: bytes, framing: Framing, size: int, suffix: bytes = b"") -> None:
        self.prefix = prefix
        self.framing = framing
        self.size = size
        self.suffix = suffix


class MalformedFrame:
    """A header block without a valid length; reading continues at the next line."""

    __slots__ = ("framing", "reason")

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.framing: Framing = LENGTH


class Unrecoverable:
    """A message too large to drain; nothing more will be read."""

    __slots__ = ("framing", "prefix")

    def __init__(self, prefix: bytes, framing: Framing) -> None:
        self.prefix = prefix
        self.framing = framing


def frame(payload: bytes, framing: Framing) -> bytes:
    """`payload` must be one line when the framing is "line"."""
    if framing == LINE:
        return payload + b"\n"
    return b"Content-Length: %d\r\n\r\n%b" % (len(payload), payload)


class Deframer:
    """`limit` bounds one message, `drain_limit` how much of a larger one is read and discarded."""

    def __init__(self, limit: int = LIMIT, drain_limit: int = DRAIN_LIMIT) -> None:
        if not 64 <= limit <= drain_limit:
            raise ValueError(f"a limit of {limit} is not between 64 and {drain_limit} bytes")
        self._limit = limit
        self._keep = min(PREFIX, limit - len(_BOM))
        self._drain_limit = drain_limit
        self._held = bytearray()
        # How much of the buffer was searched for a newline: keeps the time linear.
        self._seen = 0
        self._first = True
        self._step: Callable[[Deframer, bytes | bytearray, int, list[Piece]], int] = Deframer._line
        # The header block being read: its size so far, the length it gave, what is wrong with it.
        self._block = 0
        self._length = -1
        self._wrong = ""
        # The message being drained: bytes to come (length) or bytes so far (line), its beginning.
        self._left = 0
        self._size = 0
        self._prefix = b""
        self._suffix = b""

    def feed(self, data: bytes) -> list[Piece]:
        out: list[Piece] = []
        held = self._held
        buf: bytes | bytearray = data
        if held:
            held += data
            buf = held
        at, end = 0, len(buf)
        while at < end:
            after = self._step(self, buf, at, out)
            if after < 0:
                break
            at = after
        if buf is held:
            del held[:at]
        elif at < end:
            held += memoryview(data)[at:] if at else data
        return out

    # Each step takes from `buf` at `at` and returns the place after, or -1 when it needs more.

    def _line(self, buf: bytes | bytearray, at: int, out: list[Piece]) -> int:
        newline = buf.find(b"\n", at + self._seen)
        if newline < 0:
            return self._unfinished(buf, at, out)
        self._seen = 0
        end = newline - 1 if newline > at and buf[newline - 1] == 13 else newline
        start = at
        if self._first:
            self._first = False
            if buf.startswith(_BOM, at):
                start = min(at + 3, end)
        if self._opens_headers(buf, start):
            self._block, self._length, self._wrong = 0, -1, ""
            self._step = Deframer._header
            return start
        if end - at > self._limit:
            self._note_end(buf, at, newline)
            self._oversize(bytes(buf[start : start + self._keep]), newline - at, out)
        else:
            payload = bytes(memoryview(buf)[start:end])
            if payload and not payload.isspace():
                out.append(Frame(payload, LINE))
            elif blank := _BLANK.match(buf, newline + 1):
                return blank.end()  # all blank lines at once: there may be many
        return newline + 1

    def _unfinished(self, buf: bytes | bytearray, at: int, out: list[Piece]) -> int:
        size = len(buf) - at
        start = at + 3 if self._first and buf.startswith(_BOM, at) else at
        if self._opens_headers(buf, start):
            self._first = False
            self._seen = 0
            self._block, self._length, self._wrong = 0, -1, ""
            self._step = Deframer._header
            return start
        if size < self._limit + 2:  # a carriage return may be the last byte
            self._seen = size
            return -1
        self._first = False
        self._seen = 0
        self._size = 0
        self._prefix = bytes(buf[start : start + self._keep])
        self._step = Deframer._drain_line
        return at  # taken later, so that it is counted in one place

    @staticmethod
    def _opens_headers(buf: bytes | bytearray, at: int) -> bool:
        # No JSON text starts with a C, so the first byte decides nearly always.
        return at < len(buf) and buf[at] in b"cC" and buf[at : at + 8].lower() == b"content-"

    def _header(self, buf: bytes | bytearray, at: int, out: list[Piece]) -> int:
        newline = buf.find(b"\n", at + self._seen)
        if newline < 0:
            return self._unfinished_header(buf, at, out)
        self._seen = 0
        end = newline - 1 if newline > at and buf[newline - 1] == 13 else newline
        if end == at:
            return self._blank(newline + 1, out)
        if not buf[at : at + 1].isalpha():
            return self._resync(at, out)
        self._block += newline + 1 - at
        if self._block > HEADER_LIMIT:
            self._size = 0
            self._step = Deframer._drain_header
            return at
        match = _HEADER.fullmatch(buf, at, end)
        if match is None:
            return self._resync(newline + 1, out)
        if match[1].lower() == b"content-length":
            self._set_length(match[2].strip())
        return newline + 1

    def _unfinished_header(self, buf: bytes | bytearray, at: int, out: list[Piece]) -> int:
        size = len(buf) - at
        if buf[at] == 13 and size == 1:
            return -1
        if not buf[at : at + 1].isalpha():
            return self._resync(at, out)
        self._seen = size
        if self._block + size + 1 <= HEADER_LIMIT:
            return -1
        self._seen = self._size = 0
        self._step = Deframer._drain_header
        return at

    def _set_length(self, value: bytes) -> None:
        number = int(value) if _NUMBER.fullmatch(value) else -1
        if number < 0:
            self._wrong = f"Content-Length {value[:40]!r} is not a number of bytes"
        elif self._length not in {-1, number}:
            self._wrong = "Content-Length is given twice and differs"
        self._length = number

    def _blank(self, after: int, out: list[Piece]) -> int:
        """The header block has ended: its body begins at `after`."""
        length = self._length
        self._step = Deframer._line
        if self._wrong:
            out.append(MalformedFrame(self._wrong))
        elif length < 0:
            out.append(MalformedFrame("the headers have no Content-Length"))
        elif length > self._drain_limit:
            self._stop_reading(b"", LENGTH, out)
        elif length > self._limit:
            self._left, self._prefix = length, b""
            self._step = Deframer._drain_body
        elif length:
            self._step = Deframer._body
        else:
            out.append(Frame(b"", LENGTH))
        return after

    def _resync(self, at: int, out: list[Piece]) -> int:
        out.append(MalformedFrame(self._wrong or "invalid header line"))
        self._step = Deframer._line
        return at

    def _body(self, buf: bytes | bytearray, at: int, out: list[Piece]) -> int:
        end = at + self._length
        if end > len(buf):
            return -1
        out.append(Frame(bytes(memoryview(buf)[at:end]), LENGTH))
        self._step = Deframer._line
        return end

    def _drain_body(self, buf: bytes | bytearray, at: int, out: list[Piece]) -> int:
        end = min(at + self._left, len(buf))
        if len(self._prefix) < self._keep:
            self._prefix += buf[at : min(end, at + self._keep - len(self._prefix))]
        self._left -= end - at
        self._note_end(buf, at, end)
        if not self._left:
            out.append(OversizedFrame(self._prefix, LENGTH, self._length, self._take_suffix()))
            self._step = Deframer._line
        return end

    def _drain_line(self, buf: bytes | bytearray, at: int, out: list[Piece]) -> int:
        newline = buf.find(b"\n", at)
        end = newline if newline >= 0 else len(buf)
        self._size += end - at
        self._note_end(buf, at, end)
        if newline < 0 and self._size <= self._drain_limit:
            return end
        self._step = Deframer._line
        self._oversize(self._prefix, self._size, out)
        return end + 1 if newline >= 0 else end

    def _drain_header(self, buf: bytes | bytearray, at: int, out: list[Piece]) -> int:
        newline = buf.find(b"\n", at)
        end = newline if newline >= 0 else len(buf)
        self._size += end - at
        if self._size > self._drain_limit:
            self._stop_reading(b"", LENGTH, out)
        elif newline >= 0:
            self._step = Deframer._line
            out.append(MalformedFrame(f"the headers are over {HEADER_LIMIT} bytes"))
            return newline + 1
        return end

    def _oversize(self, prefix: bytes, size: int, out: list[Piece]) -> None:
        if size > self._drain_limit:
            self._stop_reading(prefix, LINE, out)
        else:
            out.append(OversizedFrame(prefix, LINE, size, self._take_suffix()))

    def _note_end(self, buf: bytes | bytearray, at: int, end: int) -> None:
        """Keeps one byte more than needed: the last may be the carriage return of the line end."""
        self._suffix = (self._suffix + buf[max(at, end - SUFFIX - 1) : end])[-SUFFIX - 1 :]

    def _take_suffix(self) -> bytes:
        suffix, self._suffix = self._suffix, b""
        return suffix.removeprefix(_BOM).removesuffix(b"\r")[-SUFFIX:]

    def _stop_reading(self, prefix: bytes, framing: Framing, out: list[Piece]) -> None:
        out.append(Unrecoverable(prefix, framing))
        self._step = Deframer._skip_rest

    def _skip_rest(self, buf: bytes | bytearray, at: int, out: list[Piece]) -> int:
        return len(buf)


# --- ids ---------------------------------------------------------------------------------------

_TOKEN = re.compile(rb'[\s,:]*("(?:[^"\\]|\\.)*"|[{}\[\]]|[^\s{}\[\],:"]+(?=[\s{}\[\],:"]))')


def find_id(prefix: bytes) -> tuple[Id | None, bool]:
    """Finds the id of a message by its beginning, and whether the message is a response.

    Only a member of the outermost object is its id: arguments may well have members of that name.
    """
    found: Id | None = None
    answer = False
    depth = at = 0
    key = b""
    # Reads token by token instead of searching: a string that is cut off could contain anything.
    while match := _TOKEN.match(prefix, at):
        at = match.end()
        token = match[1]
        if token in {b"{", b"["}:
            if depth == 0 and token == b"[":
                break
            depth += 1
        elif token in {b"}", b"]"}:
            depth -= 1
            key = b"" if depth == 1 else key
        elif depth == 1 and not key:
            key = token
            answer = answer or key in {b'"result"', b'"error"'}
        elif depth == 1:
            found = _id_from(token) if key == b'"id"' else found
            key = b""
    return found, answer


_LAST_ID = re.compile(
    rb'[,{]\s*"id"\s*:\s*(-?\d{1,18}|"[^"\\]*")\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?}\s*$'
)


def find_id_at_end(suffix: bytes) -> Id | None:
    """Finds the id of a message by its end, if the sender writes it last. The text before the last
    brace is a member of the outermost object."""
    match = _LAST_ID.search(suffix)
    return _id_from(match[1]) if match is not None else None


def _id_from(token: bytes) -> Id | None:
    try:
        return _usable(json.loads(token))
    except ValueError:
        return None


def _usable(value: object) -> Id | None:
    return value if isinstance(value, str) or type(value) is int else None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not valid JSON")


_decode = json.JSONDecoder(parse_constant=_no_constant).decode
_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")


class FramedMessage:
    """A client's message as one line, with the ids in it; a batch has no `method`."""

    __slots__ = ("answers", "framing", "line", "method", "params", "requests")

    def __init__(self, payload: bytes, framing: Framing) -> None:
        """Raises ValueError or RecursionError if the payload is not JSON."""
        value: Any = _decode(payload.decode())
        self.line = payload.translate(_ONE_LINE) + b"\n"  # JSON has line ends between tokens only
        self.framing = framing
        self.method: str | None = None
        self.params: dict[str, Any] = {}
        self.requests: list[tuple[Id, str]] = []
        self.answers: list[Id] = []
        for item in value if isinstance(value, list) else [value]:  # 2025-03-26 has batches
            name = item.get("method") if isinstance(item, dict) else None
            id_ = _usable(item.get("id")) if isinstance(item, dict) else None
            if id_ is not None and isinstance(name, str):
                self.requests.append((id_, name))
            elif id_ is not None and "method" not in item and ("result" in item or "error" in item):
                self.answers.append(id_)
            if item is value and isinstance(name, str):
                self.method = name
                self.params = params if isinstance(params := value.get("params"), dict) else {}


# How the hub begins what it writes; anything else is decoded to be understood.
_HEAD = re.compile(
    rb'\{"jsonrpc":"2\.0",(?:"id":(?:(-?\d{1,18})|"([^"\\]*)"),"(?:(result|error)|method)"|"method")'
)


def find_ids(payload: bytes) -> tuple[list[Id], list[Id]]:
    """Returns the ids of the responses and of the requests in a message; does not decode a large
    one."""
    head = _HEAD.match(payload)
    if head is not None:
        number, text, outcome = head.groups()
        if number is None and text is None:
            return [], []
        id_ = text.decode() if number is None else int(number)
        return ([id_], []) if outcome else ([], [id_])
    answered: list[Id] = []
    asked: list[Id] = []
    value = json.loads(payload)
    for item in value if isinstance(value, list) else [value]:
        found = _usable(item.get("id")) if isinstance(item, dict) else None
        if found is not None:
            (asked if "method" in item else answered).append(found)
    return answered, asked
