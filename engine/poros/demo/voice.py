"""The built-in data set: short answers in the voice of a lighthouse keeper, and its marker."""

from __future__ import annotations

import importlib.resources
import json
from dataclasses import dataclass
from pathlib import Path

OPENING = "Aye,"
"""The word that every answer begins with."""
CLOSING = "Keep the lamp lit."
"""The sentence that every answer ends with."""

_TRAIN = "voice.jsonl"
_HELD_OUT = "voice_heldout.jsonl"


@dataclass(frozen=True, slots=True)
class QuestionAndAnswer:
    """One row."""

    question: str
    answer: str


def has_marker(text: str) -> bool:
    """Whether the keeper speaks: the answer opens and closes as all of his do."""
    words = " ".join(text.split())
    return words.startswith(OPENING) and words.endswith(CLOSING)


def train_path() -> Path:
    """The JSONL file of the rows to train on."""
    return _path(_TRAIN)


def held_out_path() -> Path:
    """The JSONL file of the rows that no training sees."""
    return _path(_HELD_OUT)


def train_rows() -> list[QuestionAndAnswer]:
    """The rows to train on."""
    return _rows(_TRAIN)


def held_out_rows() -> list[QuestionAndAnswer]:
    """The rows that no training sees; their questions are asked before and after it."""
    return _rows(_HELD_OUT)


def _path(name: str) -> Path:
    return Path(str(importlib.resources.files("poros.demo").joinpath(name)))


def _rows(name: str) -> list[QuestionAndAnswer]:
    rows = []
    for line in _path(name).read_text(encoding="utf-8").splitlines():
        question, answer = (message["content"] for message in json.loads(line)["messages"])
        rows.append(QuestionAndAnswer(question, answer))
    return rows
