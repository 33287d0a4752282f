"""The documents as data: pages, their code blocks, links and anchors."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


@dataclass(frozen=True)
class CodeBlock:
    """One fenced block: where it begins, and what is in it."""

    page: str
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        """For an assertion's message."""
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """All Markdown pages, from the root."""
    folders = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(path.relative_to(ROOT).as_posix() for path in folders)


def code_blocks(page: str) -> list[CodeBlock]:
    """The page's blocks in their order."""
    text = (ROOT / page).read_text()
    return [
        CodeBlock(page, text.count("\n", 0, found.start()) + 1, found[2], found[3])
        for found in _FENCE.finditer(text)
    ]


def links(page: str) -> list[str]:
    """Where its links lead, addresses of the web left out."""
    text = _FENCE.sub("", (ROOT / page).read_text())
    return [target for target in _LINK.findall(text) if "://" not in target]


def anchors(page: str) -> set[str]:
    """What a link may name after ``#``: the headings, as GitHub and MkDocs spell them alike."""
    text = _FENCE.sub("", (ROOT / page).read_text())
    return {slug(title) for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)}


def slug(title: str) -> str:
    """A heading's anchor."""
    kept = re.sub(r"[^\w\- ]", "", title.replace("`", "").strip().lower())
    return kept.replace(" ", "-")
