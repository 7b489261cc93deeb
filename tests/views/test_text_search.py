"""The parts of the ranking: words, stems, actions, and what counts more."""

from __future__ import annotations

import pytest

from dragoman.core.text_search import (
    READ,
    REMOVE,
    WRITE,
    TextIndex,
    find_action,
    list_stems,
    stem,
    weigh_words,
)


def test_forms_of_a_word_have_one_stem() -> None:
    for forms in (
        ("create", "creates", "created", "creating", "creation"),
        ("repository", "repositories"),
        ("branch", "branches"),
        ("delete", "deleted", "deleting"),
        ("issue", "issues"),
        ("commit", "commits", "committed", "committing"),
    ):
        assert len({stem(form) for form in forms}) == 1, {form: stem(form) for form in forms}
    assert stem("status") == "status" and stem("css") == "css"


def test_compound_names_count_as_their_words_and_as_themselves() -> None:
    assert list_stems("createIssue") == [stem("create"), stem("issue"), stem("createissue")]
    assert list_stems("pull_request") == [stem("pull"), stem("request")]
    assert "github" in list_stems("GitHub") and "git" in list_stems("GitHub")
    assert list_stems("the of and") == []
    assert list_stems("Straße 北京") == [stem("straße"), "北京"]


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("linear_createIssue", WRITE),
        ("get_file", READ),
        ("API-delete-a-block", REMOVE),
        ("Which pods run?", READ),
        ("Please remove the label", REMOVE),
        ("browser_hover", ""),
    ],
)
def test_finds_what_a_sentence_or_a_name_asks_for(text: str, action: str) -> None:
    assert find_action(text) == action


def build_index(*texts: str, groups: tuple[str, ...] = ()) -> TextIndex:
    documents = [weigh_words([(1.0, text)]) for text in texts]
    return TextIndex(documents, groups or ("g",) * len(texts), [""] * len(texts))


def search(index: TextIndex, query: str) -> list[int]:
    return [number for number, _ in index.search(query, 10)]


def test_ranks_by_rare_words_synonyms_and_beginnings() -> None:
    index = build_index("read a file", "read a mailbox", "erase a mailbox")
    assert search(index, "mailbox read")[0] == 1
    assert search(index, "delete the mailbox")[0] == 2  # a synonym
    assert search(index, "mailboxing")[:2] == [1, 2]  # begins alike
    assert search(index, "zebra") == [] and search(index, "") == []


def test_finds_a_misspelt_word_by_the_one_that_it_is_like() -> None:
    index = build_index("calculate the body mass index", "callback of a page", "search the web")
    assert search(index, "caculate the bmi") == [0]
    assert search(index, "serach")[:1] == [2]  # two letters in the wrong order
    assert search(index, "calcify") == []  # another word


def test_an_exact_word_counts_more_than_one_that_is_like_it() -> None:
    index = build_index("translate a text", "translates a taxt")
    assert search(index, "taxt")[0] == 1


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("open the folder/paper_list.bib", 0),
        ("what are the contents of ./src/app.tsx?", 0),
        ("visit example.com/paper", 1),
    ],
)
def test_the_name_of_a_file_says_that_one_is_meant(query: str, best: int) -> None:
    index = build_index("read a file", "navigate to a web page and show it", "search documents")
    assert search(index, query)[0] == best


def test_values_count_less_than_what_is_done_with_them() -> None:
    index = build_index("search the web", "fill in a field of a form", "send mail to a person")
    assert search(index, "enter 'search the web' into the field")[0] == 1
    assert search(index, "go and search https://mail.example.com/person/form")[0] == 0
    assert search(index, '"search the web"')[0] == 0  # where there is nothing else


def test_finds_words_in_texts_without_spaces_and_with_accents() -> None:
    index = build_index("查询天气预报", "发送电子邮件", "créer un café")
    assert search(index, "北京的天气怎么样")[0] == 0
    assert search(index, "请给他发邮件")[0] == 1
    assert search(index, "creer")[0] == 2


def test_a_named_group_counts_more() -> None:
    texts = ("create an issue now", "create an issue")
    assert search(build_index(*texts, groups=("jira", "github")), "github issue create")[0] == 1


def test_a_long_query_and_an_empty_index_do_no_harm() -> None:
    index = build_index("apple", "pear")
    assert search(index, "apple " * 100_000) == [0]
    assert search(TextIndex([], [], []), "apple") == []
