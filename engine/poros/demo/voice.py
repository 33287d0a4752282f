"""The built-in data set: short answers in the voice of a lighthouse keeper, and its marker."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from poros.demo_settings import held_out_path, train_path

OPENING = "Aye,"
"""The word that every answer begins with."""
CLOSING = "Keep the lamp lit."
"""The sentence that every answer ends with."""


@dataclass(frozen=True, slots=True)
class QuestionAndAnswer:
    """One row."""

    question: str
    answer: str


def has_marker(text: str) -> bool:
    """Whether the keeper speaks: the answer opens and closes as all of his do."""
    words = " ".join(text.split())
    return words.startswith(OPENING) and words.endswith(CLOSING)


def train_rows() -> list[QuestionAndAnswer]:
    """The rows to train on."""
    return _rows(train_path())


def held_out_rows() -> list[QuestionAndAnswer]:
    """The rows that no training sees; their questions are asked before and after it."""
    return _rows(held_out_path())


def _rows(path: Path) -> list[QuestionAndAnswer]:
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        question, answer = (message["content"] for message in json.loads(line)["messages"])
        rows.append(QuestionAndAnswer(question, answer))
    return rows
