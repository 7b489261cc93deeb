"""The files of the console: modules, styles, icons. Read once; only these can be served."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

FOLDER = Path(__file__).parent / "static"
TYPES = {
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class StaticFile:
    body: bytes
    content_type: str
    etag: bytes


class StaticFiles:
    """All files below the folder, by their path. The URL of a file contains the digest of all of
    them, so that browsers keep them and never mix two releases."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._files: dict[str, StaticFile] = {}
        digest = sha256()
        for path in sorted(folder.rglob("*")):
            if path.suffix not in TYPES or not path.is_file():
                continue
            name = path.relative_to(folder).as_posix()
            body = shorten(path.read_text(encoding="utf-8")).encode()
            digest.update(f"{name}\0{len(body)}\0".encode() + body)
            etag = f'"{sha256(body).hexdigest()[:24]}"'.encode()
            self._files[name] = StaticFile(body, TYPES[path.suffix], etag)
        self.digest = digest.hexdigest()[:16]
        self.base = f"/console/static/{self.digest}"

    def find(self, path: str) -> StaticFile | None:
        """Finds the file of a URL's path."""
        start, _, name = path.partition(f"{self.base}/")
        return self._files.get(name) if not start else None

    def list_files(self) -> list[tuple[str, StaticFile]]:
        return list(self._files.items())

    def list_screens(self) -> list[str]:
        return [
            name.removeprefix("screens/").removesuffix(".js")
            for name in self._files
            if name.startswith("screens/")
        ]


def shorten(text: str) -> str:
    """Omits comments that have lines of their own, and indentation: a ninth of what browsers load.
    Texts in backquotes that span lines stay as they are."""
    kept = []
    in_comment = in_text = False
    for line in text.splitlines():
        bare = line.strip()
        if not in_text and (in_comment or bare.startswith(("//", "/*"))):
            in_comment = not bare.startswith("//") and not bare.endswith("*/")
            continue
        if in_text or bare:
            kept.append(line if in_text else bare)
        in_text ^= bare.count("`") % 2 == 1
    return "\n".join(kept) + "\n"
