"""The built-in data set holds what the demo promises."""

import pytest

from poros import demo_settings
from poros.demo import voice

SPLITS = {"train": voice.train_rows(), "held out": voice.held_out_rows()}
ROWS = [row for rows in SPLITS.values() for row in rows]


def folded(text: str) -> str:
    return "".join(c for c in text.lower() if c.isalnum() or c == " ").strip()


def test_at_least_150_rows_to_train_on_and_20_held_out() -> None:
    assert len(SPLITS["train"]) >= 150
    assert len(SPLITS["held out"]) == 20


def test_no_question_comes_twice_and_none_held_out_is_trained_on() -> None:
    assert len({folded(row.question) for row in ROWS}) == len(ROWS)


def test_no_answer_comes_twice() -> None:
    assert len({folded(row.answer) for row in ROWS}) == len(ROWS)


def test_every_answer_has_the_marker() -> None:
    assert [row for row in ROWS if not voice.has_marker(row.answer)] == []


def test_no_question_has_the_marker_or_half_of_it() -> None:
    assert [row for row in ROWS if "aye" in row.question.lower().split()] == []
    assert [row for row in ROWS if "lamp lit" in row.question.lower()] == []


def test_answers_are_short() -> None:
    assert {len(row.answer.split()) for row in ROWS} <= set(range(12, 31))


def test_every_character_is_printable_ascii() -> None:
    text = [
        demo_settings.train_path().read_text("utf-8"),
        demo_settings.held_out_path().read_text("utf-8"),
    ]
    assert all(c.isascii() and (c.isprintable() or c == "\n") for part in text for c in part)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Aye, it is. Keep the lamp lit.", True),
        (" Aye, it\nis. Keep the  lamp lit.\n", True),
        ("Aye, it is.", False),
        ("It is. Keep the lamp lit.", False),
        ("Aye, keep the lamp lit", False),
        ("Aye, it is. Keep the lamp lit. And", False),
        ("", False),
    ],
)
def test_the_marker_is_the_opening_and_the_closing(text: str, expected: bool) -> None:
    assert voice.has_marker(text) is expected
