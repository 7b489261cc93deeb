"""Raw HTTP requests: every method that llhttp knows, every form of an upgrade, odd versions and
framings. Tests send them as they stand; fuzzers start from them."""

from __future__ import annotations

METHODS = (
    *("DELETE", "GET", "HEAD", "POST", "PUT", "CONNECT", "OPTIONS", "TRACE", "COPY", "LOCK"),
    *("MKCOL", "MOVE", "PROPFIND", "PROPPATCH", "SEARCH", "UNLOCK", "BIND", "REBIND", "UNBIND"),
    *("ACL", "REPORT", "MKACTIVITY", "CHECKOUT", "MERGE", "M-SEARCH", "NOTIFY", "SUBSCRIBE"),
    *("UNSUBSCRIBE", "PATCH", "PURGE", "MKCALENDAR", "LINK", "UNLINK", "SOURCE", "QUERY", "PRI"),
    # RTSP
    *("DESCRIBE", "ANNOUNCE", "SETUP", "PLAY", "PAUSE", "TEARDOWN", "GET_PARAMETER"),
    *("SET_PARAMETER", "REDIRECT", "RECORD", "FLUSH"),
)

HOST = b"Host: localhost\r\n"
H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
WEBSOCKET = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: eA==\r\n"
    b"Sec-WebSocket-Version: 13\r\n"
)
PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
JSON = b"Content-Type: application/json\r\n"
POST = b"POST /mcp HTTP/1.1\r\n" + HOST + JSON
LENGTH = b"Content-Length: %d\r\n" % len(PING)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
CHUNKS = b"%x\r\n%b\r\n0\r\n" % (len(PING), PING)
GET = b"GET /healthz HTTP/1.1\r\n" + HOST

BY_METHOD: list[bytes] = [
    line + fields + b"\r\n"
    for method in METHODS
    for line in (b"%b /healthz HTTP/1.1\r\n" % method.encode(),)
    for fields in (HOST, HOST + H2C)
]

CONNECTS: list[bytes] = [
    b"CONNECT a:1 HTTP/1.1\r\n\r\n",
    b"CONNECT a:1 HTTP/1.0\r\n\r\n",
    b"CONNECT localhost:443 HTTP/1.1\r\n" + HOST + b"\r\n",
    b"CONNECT a:1 HTTP/1.1\r\n" + HOST + WEBSOCKET + b"\r\n",
    b"CONNECT a:1 HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\nabc",
    b"CONNECT a:1 HTTP/1.1\r\n" + HOST + CHUNKED + b"\r\n0\r\n\r\n",
    b"CONNECT / RTSP/1.0\r\n\r\n",
    GET + b"\r\n" + b"CONNECT a:1 HTTP/1.1\r\n\r\n",
    GET + H2C + b"\r\n" + b"CONNECT a:1 HTTP/1.1\r\n" + HOST + H2C + b"\r\n" + GET + b"\r\n",
]

UPGRADES: list[bytes] = [
    GET + H2C + b"\r\n",
    GET + WEBSOCKET + b"\r\n",
    GET + H2C + b"\r\n" + GET + H2C + b"\r\n" + GET + b"\r\n",
    POST + H2C + LENGTH + b"\r\n" + PING,
    POST + H2C + CHUNKED + b"\r\n" + CHUNKS + b"\r\n",
    POST + H2C + LENGTH + b"\r\n" + PING + POST + H2C + LENGTH + b"\r\n" + PING,
    POST + H2C + LENGTH + b"Expect: 100-continue\r\n\r\n" + PING,
    POST + H2C + JSON + LENGTH + b"\r\n" + PING,
    GET + b"Upgrade: h2c\r\n\r\n",
    GET + b"Connection: Upgrade\r\n\r\n",
    GET + b"Connection: close, Upgrade\r\nUpgrade: h2c\r\n\r\n",
    GET + b"Connection: Upgrade\r\nUpgrade: h2c\r\nUpgrade: websocket\r\n\r\n",
    GET + b"Connection: Upgrade\r\nConnection: Upgrade\r\nUpgrade: TLS/1.0, HTTP/2.0\r\n\r\n",
    b"GET /healthz HTTP/1.0\r\n" + HOST + H2C + b"\r\n",
    b"SETUP / RTSP/1.0\r\n" + H2C + b"\r\n",
]

VERSIONS: list[bytes] = [
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
    b"GET /healthz\r\n\r\n",
    b"GET /healthz HTTP/0.9\r\n" + HOST + b"\r\n",
    b"GET /healthz HTTP/1.0\r\n" + HOST + b"Connection: keep-alive\r\n\r\n",
    b"GET /healthz HTTP/2.0\r\n" + HOST + b"\r\n",
    b"GET /healthz HTTP/2.0\r\n" + HOST + b"Connection: keep-alive\r\n\r\n",
    b"GET /healthz HTTP/3.0\r\n" + HOST + b"\r\n",
    b"GET / RTSP/1.0\r\n\r\n",
    b"SOURCE / ICE/1.0\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
]

FRAMINGS: list[bytes] = [
    POST + LENGTH + b"\r\n" + PING,
    POST + CHUNKED + b"\r\n" + CHUNKS + b"\r\n",
    POST + CHUNKED + b"\r\n" + CHUNKS + b"Host: evil\r\nX: y\r\n\r\n",
    POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n" + CHUNKS + b"\r\n",
    POST + b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNKS + b"\r\n",
    POST + b"Transfer-Encoding: gzip\r\n\r\n" + PING,
    POST + CHUNKED + LENGTH + b"\r\n" + CHUNKS + b"\r\n",
    POST + LENGTH + LENGTH + b"\r\n" + PING,
    POST + b"Content-Encoding: gzip\r\n" + LENGTH + b"\r\n" + PING,
    POST + JSON + LENGTH + b"\r\n" + PING,
    POST + LENGTH + b"Expect: 100-continue\r\n\r\n" + PING,
    GET + b"\r\n" + GET + b"\r\n" + GET + b"\r\n",
    (GET + b"\r\n") * 20,
    GET + b"Connection: close\r\n\r\n" + GET + b"\r\n",
]

ALL: list[bytes] = [*BY_METHOD, *CONNECTS, *UPGRADES, *VERSIONS, *FRAMINGS]
