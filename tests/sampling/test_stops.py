"""Stop strings: nothing leaks, nothing is lost, and the cuts of the text do not matter."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.sampling.stops import StopChecker

# Two letters, so that prefixes, overlaps and nested stop strings are common.
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)
PIECES = st.lists(st.text("ab", max_size=6), max_size=8)


def run(pieces: list[str], stop: list[str], include: bool = False) -> tuple[str, str | None]:
    """Stream the pieces as a front would; return all text shown and the stop string."""
    checker = StopChecker(stop, include)
    shown = ""
    for piece in pieces:
        result = checker.feed(piece)
        shown += result.text
        if result.stop is not None:
            return shown, result.stop
    return shown + checker.finish(), None


def naive(
    text: str, stop: list[str], include: bool = False, armed_from: int = 0
) -> tuple[str, str | None]:
    """The definition: the first to complete, the longest of those that complete together."""
    for end in range(armed_from + 1, len(text) + 1):
        found = [string for string in stop if text[:end].endswith(string)]
        if found:
            longest = max(found, key=len)
            return text[: end if include else end - len(longest)], longest
    return text, None


def test_nothing_of_a_stop_string_leaks():
    checker = StopChecker(["DEFGHIJ"])
    shown = [checker.feed(letter).text for letter in "ABCDEFGHI"]
    assert shown == ["A", "B", "C", "", "", "", "", "", ""]
    assert checker.feed("J") == ("", "DEFGHIJ")
    assert checker.finish() == ""


def test_held_text_is_released_where_the_match_fails():
    checker = StopChecker(["DEFGHIJ"])
    assert checker.feed("ABCDEF") == ("ABC", None)
    assert checker.feed("X") == ("DEFX", None)


def test_held_text_is_released_at_the_end_once():
    checker = StopChecker(["\n\n"])
    assert checker.feed("text\n") == ("text", None)
    assert checker.finish() == "\n"
    assert checker.finish() == ""


def test_a_piece_is_cut_at_a_stop_in_its_middle():
    assert StopChecker(["stop"]).feed("one stop two stop") == ("one ", "stop")


@pytest.mark.parametrize(
    ("text", "stop", "shown", "which"),
    [
        ("xabc", ["abc", "b"], "xa", "b"),  # completes first
        ("xabc", ["c", "abc"], "x", "abc"),  # completes together: starts first
        ("aab", ["ab"], "a", "ab"),  # a failed start inside a match
        ("abababc", ["ababc"], "ab", "ababc"),
        ("a😀b", ["😀"], "a", "😀"),
        ("abc", ["abcd"], "abc", None),
        ("abc", [], "abc", None),
    ],
)
def test_which_stop_counts(text: str, stop: list[str], shown: str, which: str | None):
    assert run([text], stop) == (shown, which)
    assert run(list(text), stop) == (shown, which)


def test_an_included_stop_is_shown_and_nothing_is_held_for_it():
    checker = StopChecker(["END"], include=True)
    assert checker.feed("the E") == ("the E", None)
    assert checker.feed("ND.") == ("ND", "END")


def test_until_min_tokens_a_stop_is_plain_text_but_may_begin():
    checker = StopChecker(["ab"])
    assert checker.feed("xabya", may_stop=False) == ("xaby", None)
    assert checker.feed("b") == ("", "ab")


def test_feeding_after_a_stop_is_a_bug():
    checker = StopChecker(["a"])
    checker.feed("a")
    with pytest.raises(AssertionError, match="after a stop"):
        checker.feed("b")


@given(PIECES, STOPS, st.booleans())
def test_streams_equal_the_definition_however_cut(
    pieces: list[str], stop: list[str], include: bool
):
    text = "".join(pieces)
    expected = naive(text, stop, include)
    assert run(pieces, stop, include) == expected
    assert run([text], stop, include) == expected
    assert run(list(text), stop, include) == expected


@given(PIECES, STOPS)
def test_what_is_shown_at_any_time_is_safe_and_what_is_held_is_needed(
    pieces: list[str], stop: list[str]
):
    checker = StopChecker(stop)
    shown = fed = ""
    for piece in pieces:
        result = checker.feed(piece)
        shown, fed = shown + result.text, fed + piece
        if result.stop is not None:
            return
        starts = [s[:k] for s in stop for k in range(len(s)) if fed.endswith(s[:k])]
        assert shown == fed[: len(fed) - max(map(len, starts), default=0)]


@given(PIECES, PIECES, STOPS, st.booleans())
def test_stops_before_min_tokens_do_not_count(
    early: list[str], late: list[str], stop: list[str], include: bool
):
    checker = StopChecker(stop, include)
    shown = "".join(checker.feed(piece, may_stop=False).text for piece in early)
    for piece in late:
        result = checker.feed(piece)
        shown += result.text
        if result.stop is not None:
            break
    else:
        shown += checker.finish()
    text = "".join(early + late)
    assert shown == naive(text, stop, include, armed_from=len("".join(early)))[0]
