"""Converts HTML to readable text: with the library of the extra `web`, or else by removing tags."""

from __future__ import annotations

import re
from html.parser import HTMLParser

MAX_LINK = 300
_SKIPPED = frozenset({"script", "style", "noscript", "template", "svg", "head", "nav", "iframe"})
_BLOCKS = frozenset(
    {
        *("address", "article", "aside", "blockquote", "br", "dd", "div", "dl", "dt", "figure"),
        *("footer", "form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main"),
        *("ol", "p", "pre", "section", "table", "tr", "ul"),
    }
)
_VOID = frozenset({"br", "hr", "img", "input", "link", "meta", "wbr", "source", "col", "embed"})
_SPACES = re.compile(r"[ \t\r\f\v\u00a0]+")
_LINES = re.compile(r"\n\s*\n\s*")


def extract_text(html: str) -> str:
    """Returns the text of a page as Markdown, or as plain lines without the extra `web`."""
    try:
        from html_to_markdown import convert
    except ImportError:
        return strip_tags(html)
    try:
        found = convert(html)
    except Exception:  # the page may be anything
        return strip_tags(html)
    text = found if isinstance(found, str) else getattr(found, "content", None)
    return text.strip() if isinstance(text, str) and text.strip() else strip_tags(html)


def strip_tags(html: str) -> str:
    """Removes tags with the standard library's parser: paragraphs become lines, list items have a
    dash, headings their hashes, and links their address."""
    parser = _TextParser()
    parser.feed(html)
    parser.close()
    lines = (_SPACES.sub(" ", line).strip() for line in "".join(parser.pieces).split("\n"))
    text = _LINES.sub("\n\n", "\n".join(lines)).strip()
    return f"# {parser.title.strip()}\n\n{text}" if parser.title.strip() else text


class _TextParser(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self.title = ""
        self._skipped = 0
        """How many elements are open whose text is not shown."""
        self._in_title = False
        self._links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "title":
            self._in_title = True
        elif tag in _SKIPPED:
            self._skipped += 1
        elif not self._skipped:
            self._open_shown(tag, dict(attrs))

    def _open_shown(self, tag: str, attributes: dict[str, str | None]) -> None:
        if tag in _BLOCKS:
            self.pieces.append("\n\n" if tag in ("p", "table", "ul", "ol", "pre") else "\n")
        if tag == "li":
            self.pieces.append("- ")
        elif len(tag) == 2 and tag[0] == "h" and tag[1].isdigit():
            self.pieces.append(f"\n{'#' * int(tag[1])} ")
        elif tag in ("td", "th"):
            self.pieces.append(" ")
        elif tag == "a":
            self._links.append(attributes.get("href") or "")

    def handle_endtag(self, tag: str) -> None:
        if tag == "title":
            self._in_title = False
        elif tag in _SKIPPED:
            self._skipped = max(0, self._skipped - 1)
        elif not self._skipped and tag not in _VOID:
            if tag in _BLOCKS:
                self.pieces.append("\n")
            if tag == "a" and self._links:
                link = self._links.pop()
                if link.startswith(("http://", "https://")) and len(link) <= MAX_LINK:
                    self.pieces.append(f" ({link})")

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title = f"{self.title}{data}"[:300]
        elif not self._skipped:
            self.pieces.append(data)
