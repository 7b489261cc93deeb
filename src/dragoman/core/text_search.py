"""Full-text ranking of short documents: BM25 over weighted fields, with stems and synonyms.

Knows nothing of tools. Names in camelCase and snake_case count as their words.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import nlargest
from math import log

from dragoman.core.nearest_names import find_nearest

K1, B = 1.8, 0.5
"""Saturation of repeated words, and how much the length of a document counts."""
SYNONYM = 0.5
"""The weight of a synonym of a word in the query."""
PREFIX = 0.4
"""The weight of words that begin like a word that no document has."""
MISSPELT = 0.5
"""The weight of the word that a word is like which no document has."""
VALUE = 0.3
"""The weight of words in addresses, paths and quotation marks: they are what a tool is given."""
IDIOM = 1.0
"""The weight of words that a phrase of the query stands for."""
COVERAGE = 0.4
"""The share of the score that depends on how many words of the query a document has."""
GROUP = 2.0
"""How much more a document counts whose group the query names."""
OTHER_ACTION = 0.6
"""How much less a document counts that does something else than the query asks for."""
MIN_PREFIX = 4
ALIKE, ALIKE_SHORT = 0.8, 0.75
"""How like a misspelt word is; the second for words below six letters."""
MAX_QUERY = 1_000
"""Characters of a query."""
MAX_WORDS = 64
"""Words of a query."""
MAX_GUESSES = 10
"""Words of a query that no document has, and that are compared with all others."""

_WORD = re.compile(r"[^\W_]+")
_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]{2,}")
"""Text without spaces between words: Chinese, Japanese and Korean."""
_VALUE = re.compile(
    r"https?://\S+"
    r"|[\w.+-]{1,64}@[\w-]{1,64}\.[\w.-]{1,64}"
    r"|(?<![\w/.])(?:~|\.{1,2})?/[\w.@+-]+(?:/[\w.@+-]*)*"
    r"|\"[^\"\n]{1,200}\""
    r"|(?<!\w)'[^'\n]{1,200}'(?!\w)"
    "|“[^”\n]{1,200}”"
    "|`[^`\n]{1,200}`"
)
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_STOP_TEXT = (
    "a about according again already also am an and any anybody anything are as at be been "
    "being below but by can cannot could currently did do does doing done each else ever "
    "exactly few for from give given gives had has have having he her here him his how i if "
    "in into is it its just know last let like ll may me might mine more most much must my "
    "need needs new next no not now of off ok on once one only onto or other our out over own "
    "please re right s say says see shall she should show shows so some someone "
    "something somewhere soon still such sure t take tell than thank that the their them then "
    "there these they thing things this those through to too tool tools under until up us use "
    "used uses using ve very via want wants was way we well were what whatever when where "
    "whether which while who whole whose why will with within without would yes yet you your"
)
_STOP_WORDS = frozenset(_STOP_TEXT.split())
"""Words that say nothing of what is looked for."""
_FILE_NAME = (
    r"[\w-]{1,64}\.(?!(?:com|org|net|io|dev|ai|co|gov|edu|info|app|uk|de|fr|cn|jp|eu|us)\b)"
    r"[a-z][a-z0-9]{1,4}\b(?![.@/])"
)
"""A name with an extension that is no domain."""
_IDIOMS = tuple(
    (re.compile(rf"\b(?:{pattern})\b", re.IGNORECASE), meaning)
    for pattern, meaning in (
        ("set up|sets up|setting up|spin up|start a|begin a", "create"),
        ("look(?:ing)? for|look(?:ing)? up|search for|is there an?y?|are there any", "search find"),
        ("get rid of|take .{1,40} away|throw away|for good|no longer|forget", "delete remove"),
        ("who am i|logged in as|my own account|my account", "current user viewer me self whoami"),
        ("go to|visit|browse to", "navigate open"),
        ("go back|return to the previous", "navigate back"),
        ("shut .{0,20}down", "close stop"),
        ("what'?s in|what is in", "list contents"),
        ("what time|how late is it", "current time"),
        ("how far", "distance"),
        ("how high|above sea level|altitude", "elevation"),
        ("how many", "count number"),
        ("step by step", "sequential step thinking"),
        ("add up|sum up", "sum add numbers"),
        ("hand .{1,40} over|give .{1,40} to", "assign transfer"),
        ("find out", "get search"),
        ("put .{1,60} (?:into|in|under|on|to)", "add"),
        ("file an?|report an?|raise an?", "create"),
        ("opening hours", "details"),
        ("take a picture", "screenshot"),
        ("child of", "subtask sub parent"),
        ("root cause", "analyze"),
        ("up to date", "update"),
        ("what did|what has|since", "changes history"),
        ("not committed|uncommitted|pending changes", "status working tree unstaged changes"),
        (_FILE_NAME, "file"),
        (rf"(?:open|show|display|print|view|look at|contents? of).{{0,60}}{_FILE_NAME}", "read"),
        (r"(?<![\w/.:])(?:~|\.{1,2})?/[\w.@+-]+", "path file directory"),
        (r"https?://\S+", "url web page"),
        (r"(?=[a-f]*[0-9])[0-9a-f]{6,40}", "commit revision"),
        ("do you remember|do you know|you know", "memory search"),
        ("has access|have access", "users members"),
        ("status report|weekly report", "update status"),
    )
)
"""Phrases of everyday speech, and the words that descriptions have for them."""
_SYNONYM_GROUPS = (
    "add create make insert new open start begin",
    "append add insert",
    "remove delete drop erase discard clear trash wipe forget uninstall",
    "change update edit modify alter set patch adjust replace",
    "rename move update",
    "get fetch read retrieve view load obtain download dump",
    "list enumerate overview available every all which",
    "find search query lookup locate grep discover seek",
    "send post message write",
    "reply answer respond response",
    "post tell announce notify",
    "folder directory dir",
    "file document",
    "picture image photo png jpeg media",
    "screenshot snapshot picture capture",
    "page website site url web webpage address article link",
    "internet web online",
    "repo repository project codebase",
    "issue ticket bug defect problem crash",
    "story task todo issue",
    "pr pull",
    "mr merge",
    "person people user member teammate colleague human account profile",
    "remember memory knowledge graph recall know",
    "fact observation",
    "link relation edge connection relationship",
    "entity node person",
    "channel chat conversation room",
    "thread reply answer",
    "thumb emoji reaction react",
    "comment note remark feedback annotation",
    "table collection database",
    "row record entry item",
    "column field property attribute",
    "database db sql schema",
    "query select sql",
    "time clock hour timezone date",
    "meeting event appointment calendar",
    "diff difference compare change",
    "history log past commit",
    "stage add",
    "unstage reset unstaged",
    "undo revert reset restore rollback rollout",
    "switch checkout change",
    "move relocate transfer",
    "copy duplicate clone fork",
    "run execute launch invoke perform trigger start",
    "click press tap push hit button",
    "type enter fill input write",
    "form field",
    "popup dialog confirm alert prompt",
    "dropdown select option choose pick",
    "pick choose select upload",
    "mouse hover cursor",
    "key keyboard press",
    "pause wait delay sleep",
    "count number many total stats",
    "add sum plus",
    "label tag",
    "status state progress check",
    "customer client buyer",
    "want need request ask",
    "cancel stop end abort terminate close finish complete",
    "finish complete close resolve",
    "map place location",
    "restaurant place business shop local nearby near close",
    "coordinates latitude longitude geocode",
    "street address reverse",
    "route direction drive transport navigate travel",
    "car driving distance travel",
    "detail info information metadata",
    "pod container workload deployment resource",
    "cluster kubernetes k8s kubectl",
    "manifest yaml",
    "replica scale",
    "shell exec command terminal",
    "output log stdout",
    "drain cordon maintenance node",
    "reachable forward port localhost",
    "chart helm",
    "error exception crash failure unresolved",
    "docs documentation manual reference guide library",
    "scrape extract crawl read content",
    "whole entire all crawl every",
    "structured json data",
    "paper publication article research scientific",
    "similar related",
    "monitor watch track",
    "sprint cycle iteration",
    "current active running",
    "team group squad",
    "milestone goal",
    "urgent priority importance",
    "assign assignee owner delegate give",
    "block relation dependency",
    "watch subscribe follow",
    "star favorite bookmark favourite",
    "device session logout",
    "archive hide shelve",
    "attach attachment upload file link",
    "content contents body text inside",
    "disk size space",
    "nested tree structure recursive hierarchy",
    "permit allowed allow permission access",
    "version release deploy",
    "approve review approved",
    "check ci status test build",
    "small tiny little",
    "compress gzip zip",
    "repeat echo",
    "fake simulated mock",
    "slow long",
    "think reason thought thinking",
    "variable env environment",
    "paragraph block",
    "window tab browser",
    "phone size resize",
    "dark theme media color",
    "javascript js code evaluate script",
    "http network request",
    "recorded replay session recording",
    "visitor user session",
    "object resource kind",
    "job operation task",
    "markdown text",
)


READ, WRITE, REMOVE = "read", "write", "remove"
"""What is done to things: they are looked at, made or changed, or taken away."""
_ACTIONS = {
    word: action
    for action, words in (
        (
            READ,
            "get list read search find query retrieve show view fetch describe lookup count "
            "discover explain check compare diff inspect resolve convert what which who whose when "
            "where how is are was were has have does did can dump tell any "
            "see browse download load watch",
        ),
        (
            WRITE,
            "create add post insert make update edit set write put change modify rename move patch "
            "assign push merge commit apply install upgrade start save append file report attach "
            "comment mark upload transfer duplicate send reply fork enable approve plan record "
            "schedule stage",
        ),
        (
            REMOVE,
            "delete remove archive drop erase clear uninstall close stop end unstage reset cancel "
            "forget discard shut terminate logout",
        ),
    )
    for word in words.split()
}


def find_action(text: str, most: int = 12) -> str:
    """What a sentence or a name asks for, by its first verb or question word; empty if unknown."""
    for word in _WORD.findall(text)[:most]:
        for part in _PART.findall(word):
            if (action := _ACTIONS.get(part.lower())) is not None:
                return action
    return ""


def _build_synonyms() -> dict[str, frozenset[str]]:
    found: dict[str, set[str]] = {}
    for group in _SYNONYM_GROUPS:
        stems = {stem(word) for word in group.split()}
        for one in stems:
            found.setdefault(one, set()).update(stems - {one})
    return {word: frozenset(others) for word, others in found.items()}


_ENDINGS = (("ation", 4), ("ing", 3), ("ed", 3), ("er", 3), ("ion", 3), ("ly", 3))
"""Endings, and how many letters must be left before each."""


def stem(word: str) -> str:
    """Removes the usual endings of English words, so that forms of one word are equal."""
    if len(word) <= 3:
        return word
    for ending, replacement in (
        ("ies", "y"), ("sses", "ss"), ("ches", "ch"), ("shes", "sh"), ("xes", "x"),
    ):  # fmt: skip
        if word.endswith(ending):
            word = word[: -len(ending)] + replacement
            break
    else:
        if word.endswith("s") and not word.endswith(("ss", "us", "is")):
            word = word[:-1]
    for ending, least in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= least:
            word = word[: -len(ending)]
            if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "ls":
                word = word[:-1]
            break
    if len(word) > 3 and word.endswith("e"):
        word = word[:-1]
    return word[:-1] + "i" if len(word) > 3 and word.endswith("y") else word


_SYNONYMS = _build_synonyms()


def list_stems(text: str) -> list[str]:
    """The words of a text, without those that carry no meaning. A compound name counts as itself
    and as its parts."""
    found = []
    for word in _WORD.findall(text):
        if not word.isascii():
            found += _split_unspaced(_remove_accents(word).lower())
            continue
        parts = _PART.findall(word)
        if len(parts) > 1:
            found += [part.lower() for part in parts if len(part) > 1]
        found.append(word.lower())
    return [stem(word) for word in found if word not in _STOP_WORDS]


def _remove_accents(word: str) -> str:
    parts = unicodedata.normalize("NFD", word)
    return unicodedata.normalize(
        "NFC", "".join(one for one in parts if not "\u0300" <= one <= "\u036f")
    )


def _split_unspaced(word: str) -> list[str]:
    """Cuts what is written without spaces into pairs of characters: where its words end, no rule
    says, and two texts about one thing have pairs in common."""
    found, place = [], 0
    for match in _UNSPACED.finditer(word):
        found.append(word[place : match.start()])
        run, place = match.group(), match.end()
        found += [run[at : at + 2] for at in range(len(run) - 1)]
    found.append(word[place:])
    return [one for one in found if one]


def weigh_words(fields: Iterable[tuple[float, str]]) -> dict[str, float]:
    """The weight of each word of a document, from its fields and their weights. A word counts for
    the best two of the times that it occurs in a field."""
    found: dict[str, float] = {}
    for weight, text in fields:
        for word, count in Counter(list_stems(text)).items():
            found[word] = found.get(word, 0.0) + weight * min(count, 2)
    return found


class TextIndex:
    def __init__(
        self,
        documents: Sequence[Mapping[str, float]],
        groups: Sequence[str],
        actions: Sequence[str],
    ) -> None:
        """`documents` are the weights of their words, as `weigh_words` returns them; `groups` are
        the names of what each belongs to, which count more if the query names one; `actions` are
        what each does, as `find_action` returns it."""
        self._actions = actions
        self._groups: dict[str, list[int]] = {}
        for number, group in enumerate(groups):
            for word in dict.fromkeys(list_stems(group)):
                self._groups.setdefault(word, []).append(number)
        self._postings: dict[str, list[tuple[int, float]]] = {}
        lengths = [sum(one.values()) for one in documents]
        average = sum(lengths) / len(lengths) if lengths else 1.0
        for number, document in enumerate(documents):
            norm = K1 * (1 - B + B * lengths[number] / (average or 1.0))
            for word, weight in document.items():
                gain = weight * (K1 + 1) / (weight + norm)
                self._postings.setdefault(word, []).append((number, gain))
        self._count = len(documents)
        self._by_form: dict[tuple[str, int], list[str]] = {}
        """The words by their first letter and length, once a misspelt one is looked up."""

    def search(self, query: str, limit: int) -> list[tuple[int, float]]:
        """Returns the numbers of the best documents and their scores, the best first."""
        scores: dict[int, float] = {}
        matched: dict[int, float] = {}
        words = self._weigh_query(query)
        guesses = MAX_GUESSES
        for word, importance in words.items():
            best: dict[int, float] = {}
            expanded = self._expand(word)
            if not expanded and guesses:
                guesses -= 1
                expanded = self._guess(word)
            for others, weight in expanded:
                worth = importance * weight * self._find_rarity(others)
                for other in others:
                    for number, gain in self._postings[other]:
                        best[number] = max(best.get(number, 0.0), worth * gain)
            # A document that has a word and its synonym has it once.
            for number, score in best.items():
                scores[number] = scores.get(number, 0.0) + score
                matched[number] = matched.get(number, 0.0) + importance
        total = sum(words.values()) or 1.0
        for number in scores:
            scores[number] *= 1 - COVERAGE + COVERAGE * matched[number] / total
        for number in {one for word in words for one in self._groups.get(word, ())}:
            if number in scores:
                scores[number] *= GROUP
        action = find_action(query)
        for number in scores if action else ():
            if self._actions[number] not in ("", action):
                scores[number] *= OTHER_ACTION
        return nlargest(limit, scores.items(), key=lambda one: (one[1], -one[0]))

    def _weigh_query(self, query: str) -> dict[str, float]:
        query = query[:MAX_QUERY]
        words = dict.fromkeys(list_stems(_VALUE.sub(" ", query))[:MAX_WORDS], 1.0)
        for word in list_stems(" ".join(_VALUE.findall(query)))[: MAX_WORDS - len(words)]:
            words.setdefault(word, VALUE)
        for pattern, meaning in _IDIOMS:
            if pattern.search(query):
                for word in list_stems(meaning):
                    words.setdefault(word, IDIOM)
        return words

    def _find_rarity(self, words: Collection[str]) -> float:
        """How much it says that a document has one of the words."""
        if len(words) == 1:
            (word,) = words
            having = len(self._postings[word])
        else:
            having = len({number for word in words for number, _ in self._postings[word]})
        return log(1 + (self._count - having + 0.5) / (having + 0.5))

    def _expand(self, word: str) -> list[tuple[Collection[str], float]]:
        """The words of the index that stand for a word of a query, with their weights."""
        found: list[tuple[Collection[str], float]] = []
        if word in self._postings:
            found.append(((word,), 1.0))
        others = {one for one in _SYNONYMS.get(word, ()) if one in self._postings}
        if others:
            found.append((others | {word} & self._postings.keys(), SYNONYM))
        return found

    def _guess(self, word: str) -> list[tuple[Collection[str], float]]:
        """The words of the index that a word of a query may stand for which no document has."""
        if len(word) < MIN_PREFIX:
            return []
        if near := [one for one in self._postings if _begins_alike(one, word)]:
            return [(near, PREFIX)]
        meant = self._find_misspelt(word)
        return [((meant,), MISSPELT)] if meant is not None else []

    def _find_misspelt(self, word: str) -> str | None:
        """The word of the index that a misspelt one is like, with the same first letter and at most
        one letter more or less."""
        if not self._by_form:
            for known in self._postings:
                self._by_form.setdefault((known[0], len(known)), []).append(known)
        if not word.isalpha():
            return None
        near = [
            known
            for length in (len(word), len(word) - 1, len(word) + 1)
            for known in self._by_form.get((word[0], length), ())
        ]
        return find_nearest(word, near, ALIKE if len(word) > 5 else ALIKE_SHORT)


def _begins_alike(one: str, other: str) -> bool:
    shorter = min(len(one), len(other))
    return shorter >= MIN_PREFIX and one[:shorter] == other[:shorter]
