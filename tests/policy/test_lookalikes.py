"""Additions whose names look like an approved one are quarantined; ordinary ones are offered."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.policy.test_pins import Board, skill_tools, tool

from dragoman.core.tool import PROMPT
from dragoman.pins.lookalikes import build_skeletons

LIKE_READ_FILE = [
    "read__file",
    "read_-_file",
    "_read_file",
    "read_file_",
    "read_file ",
    "read\u00a0file",
    "r\u0435ad_file",  # Cyrillic
    "rea\u0501_\ud835\udcbbile".encode("utf-16", "surrogatepass").decode("utf-16"),
    "\uff52ead_file",  # full width
    "read_f\u0131le",
    "read_f\u0456le",
    "READ_F\u0399LE",  # Greek
    "read_fiIe",
    "read_fi1e",
    "read_file\u0301",
    "re\u0301ad_file",
    "\u24e1ead_file",
    "read\u2010file",
]
ORDINARY = [
    "read_files",
    "read_file_2",
    "reload_file",
    "write_file",
    "readfile",
    "datei_lesen",
    "lire_fichier",
    "\u0447\u0438\u0442\u0430\u0442\u044c",
    "\u30d5\u30a1\u30a4\u30eb",
    "Read_Field",
]


def looks_alike(one: str, other: str) -> bool:
    return bool(build_skeletons(one) & build_skeletons(other))


@pytest.mark.parametrize("name", LIKE_READ_FILE)
def test_an_addition_that_looks_like_an_approved_name_is_quarantined(
    board: Board, name: str
) -> None:
    first, new = tool({"name": "read_file"}), tool({"name": name, "description": "Reads."})
    assert board.held(first) == {}
    for offered in ((new,), (first, new), (first, new)):  # also without the other, and again
        held = board.held(*offered)
        assert held.keys() == {new.name} and 'looks like "read_file"' in held[new.name]
    board.people.approve(new.name, "ann")
    assert board.held(first, new) == {}


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(tmp_path)


def test_ordinary_additions_are_offered_at_once(board: Board) -> None:
    assert board.held(tool({"name": "read_file"})) == {}
    additions = [tool({"name": name}) for name in ORDINARY]
    assert board.held(tool({"name": "read_file"}), *additions) == {}
    assert board.held(*additions) == {}


def test_the_first_list_and_unpinned_targets_have_no_additions(board: Board) -> None:
    pair = tool({"name": "read_file"}), tool({"name": "read__file"})
    assert board.held(*pair) == {}
    board.mode = "off"
    assert board.held(*pair, tool({"name": "_read_file"})) == {}


def test_lookalikes_of_additions_prompts_skills_and_rejected_names_are_quarantined(
    board: Board,
) -> None:
    assert board.held(tool({"name": "x"})) == {}
    later = tool({"name": "later"}), tool({"name": "l\u0430ter"})
    assert board.held(tool({"name": "x"}), *later).keys() == {later[1].name}

    prompts = [tool({"name": name}, kind=PROMPT) for name in ("ask", "\u0430sk", "x__")]
    assert board.pins.review("files", prompts[:1], PROMPT).quarantined == {}
    held = board.pins.review("files", prompts, PROMPT).quarantined
    assert held.keys() == {prompts[1].name}, "a tool is not a prompt"

    skills = [{"id": "forecast", "name": "F"}, {"id": "f\u043erecast", "name": "F"}]
    assert board.held(*skill_tools(*skills[:1]), target="weather") == {}
    names = board.held(*skill_tools(*skills), target="weather").keys()
    assert names == {"weather.f\u043erecast"}

    board.people.reject(later[0].name, "ann")
    board.people.reject(later[1].name, "ann")
    another = tool({"name": "LATER_"})
    assert board.held(another).keys() == {another.name}


def test_lookalikes_are_found_after_a_restart(tmp_path: Path) -> None:
    for _ in range(2):
        board = Board(tmp_path)
        assert board.held(tool({"name": "read_file"})) == {}
        board.store.close()
    board = Board(tmp_path)
    assert board.held(tool({"name": "read__file"})).keys() == {"files.read__file"}
    board.store.close()


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        ("paypal", "p\u0430yp\u0430l", True),
        ("modem", "modern", True),
        ("list", "Iist", True),
        ("get_ip", "get\u0406p", False),
        ("get_ip", "get_\u0406p", True),
        ("getIp", "get\u0456p", True),
        ("v0", "vO", True),
        ("caf\u00e9", "cafe", True),
        ("\u30ac", "\u30ab", False),
        ("\u0915\u093f", "\u0915\u0940", False),
        ("\u2603", "\u2604", False),
        ("", "_", False),
        ("abc", "xyz", False),
    ],
)
def test_names_look_alike(one: str, other: str, alike: bool) -> None:
    assert looks_alike(one, other) is looks_alike(other, one) is alike
