"""Files that are sent to a model agent: the model is shown their text."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import pytest
from tests.agents.agent_rig import open_rig
from tests.peers.scripted_model import running_model, say

from dragoman.core.principal import OWNER

pytestmark = pytest.mark.promise("T1")

LONG = "ü" * 100_010


@pytest.mark.parametrize(
    ("media", "data", "shown"),
    [
        ("text/csv", b"a,b\n1,2\n", "[file file:///f]\na,b\n1,2\n"),
        ("text/plain; charset=utf-8", "\ufeffgrün".encode(), "[file file:///f]\ngrün"),
        ("application/json", b'{"a": 1}', '[file file:///f]\n{"a": 1}'),
        ("application/vnd.api+json", b"{}", "[file file:///f]\n{}"),
        ("Application/XML", b"<a/>", "[file file:///f]\n<a/>"),
        ("application/yaml", b"a: 1", "[file file:///f]\na: 1"),
        ("text/plain", LONG.encode(),
         f"[file file:///f]\n{LONG[:-10]}\n[the other 10 characters of the file were left out]"),
        ("text/plain", b"gr\xfcn", "[file file:///f]"),
        ("text/plain", b"a\0b", "[file file:///f]"),
        ("application/pdf", b"%PDF-1.7", "[file file:///f]"),
        ("", b"a,b", "[file file:///f]"),
    ],
)  # fmt: skip
async def test_text_of_a_file_is_shown(
    short_tmp: Path, media: str, data: bytes, shown: str
) -> None:
    with running_model() as model:
        async with open_rig(short_tmp) as rig:
            await rig.write("reader", f'[model]\nmodel = "m"\nbase_url = "{model.url}"\n')
            model.answers = [say("read")]
            file = {"name": "f", "data": b64encode(data).decode(), "mediaType": media}
            await rig.call(OWNER, "reader.message", {"message": "sum it up", "files": [file]})
            (message,) = model.requests[0]["messages"]
            assert message["content"] == f"sum it up\n{shown}"
