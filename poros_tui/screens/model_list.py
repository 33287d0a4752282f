"""The models that are offered: those that are here, used before, known, or found on the Hub."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from poros.demo_settings import WHEEL_BYTES
from poros.model_suggestion import Suggestion
from poros_tui import glyphs, words
from poros_tui.widgets.entry_list import Entry

DEMO, SEARCH, TYPED = "demo:", "search:", "typed:"
"""Beginnings of an entry's key that is no model's name."""

_SMALL = 0.45
"""Parameters in units of 10**9, below which they are told in millions."""
_LABELS = {
    "certified": ("ok", "success", "certified"),
    "experimental": ("warn", "warning", "not proved yet"),
    "unsupported": ("error", "error", "can't be trained"),
    "unknown": ("unknown", "secondary", ""),
}


def read(document: Any) -> list[Suggestion]:
    """The command's answer; anything else is no list."""
    if not isinstance(document, list):
        return []
    names = {field.name for field in fields(Suggestion)}
    return [
        Suggestion(**{key: value for key, value in record.items() if key in names})
        for record in document
    ]


def entries(
    typed: str,
    offered: Sequence[Suggestion],
    *,
    used: Sequence[str] = (),
    on_hub: Sequence[Suggestion] = (),
    searched: str = "",
) -> list[Entry]:
    """What the list shows.

    Args:
        typed: Words that must be in the names, or a name or folder itself.
        offered: What `poros models` said.
        used: Models of earlier sessions, the latest first.
        on_hub: What the last search found.
        searched: The words that were searched for; where they found nothing, all are offered.
    """
    wanted = "" if typed and typed == searched and not on_hub else typed
    fitting = [one for one in offered if _has_words(one, wanted)]
    here = [one for one in fitting if one.place == "here"]
    listed: list[Entry] = []
    if "/" in typed or typed.startswith(("~", ".")):
        listed.append(Entry(f"{TYPED}{typed}", typed, "look at this one", glyphs.chosen().arrow))
    if not typed and offered and not any(one.is_demo for one in offered):
        demo = Entry(DEMO, "the demo's model", f"{WHEEL_BYTES / 1e6:.0f} MB to fetch")
        listed += [Entry("", "To try it out"), demo]
    listed += _section("On this computer", here)
    other = [
        one for one in used if wanted.lower() in one.lower() and one not in {o.name for o in here}
    ]
    if other:
        listed.append(Entry("", "Used before"))
        listed += [Entry(one, words.short_path(one)) for one in other]
    if on_hub and typed == searched:
        listed += _section(f"On the Hub: {searched}", on_hub)
    listed += _section("Known models", [one for one in fitting if one.place == "known"])
    if typed:
        search = Entry(f"{SEARCH}{typed}", f"search the Hub for “{typed}”")
        listed += [Entry("", "Elsewhere"), search]
    return listed


def _has_words(one: Suggestion, typed: str) -> bool:
    text = f"{one.name} {one.title} {one.model_type}".lower()
    return all(word in text for word in typed.lower().split())


def _section(title: str, found: Sequence[Suggestion]) -> list[Entry]:
    return [Entry("", title), *map(_entry, found)] if found else []


def _entry(one: Suggestion) -> Entry:
    glyph, colour, word = _LABELS.get(one.label, _LABELS["unknown"])
    size = words.gigabytes(one.num_bytes) if one.num_bytes else ""
    if one.num_params:
        is_small = one.num_params < _SMALL
        size = f"{one.num_params * 1000:.0f} M" if is_small else f"{one.num_params:.1f} B"
    note = "terms" if one.is_gated else ""
    value = f"{size:>8}  {word}"
    return Entry(one.name, one.title, value, getattr(glyphs.chosen(), glyph), colour, note)
