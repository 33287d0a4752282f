"""What `poros data --json` said, of tokens or of raw rows, in words for the screen."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from textual.content import Content

from poros_tui import glyphs
from poros_tui.screens.config_draft import Lengths
from poros_tui.screens.verdict import Verdict
from poros_tui.widgets.facts import Fact, State
from poros_tui.words import gigabytes, safe

Record = Mapping[str, Any]

READ_AS = {
    "messages": "conversations (messages)",
    "sharegpt": "conversations (ShareGPT)",
    "alpaca": "instruction, input, output",
    "prompt_completion": "prompt and completion",
    "text": "plain text, learned as it stands",
    "synthetic": "random tokens, to try things out",
    "tokens": "token ids",
}
MAPPING = {
    "messages": "each turn's role and content",
    "sharegpt": "human asks, gpt answers",
    "alpaca": "instruction + input are asked, output is answered",
    "prompt_completion": "prompt is asked, completion is answered",
    "text": "text is learned as it stands",
}
_EXAMPLES = {
    "a question and its answer": '{"prompt": "Who are you?", "completion": "A keeper."}',
    "a conversation": '{"messages": [{"role": "user", "content": "Who are you?"}, ...]}',
    "an instruction": '{"instruction": "Translate", "input": "mer", "output": "sea"}',
    "plain text": '{"text": "Aye, grey as a wet slate."}',
}
_REASONS = {
    "empty": "empty",
    "bad_line": "unreadable",
    "no_labels": "nothing in them is trained",
    "too_long": "too long",
    "overlong": "too long",
}
_WARN_PART, _BAD_PART = 0.01, 0.3
"""Of rows that give nothing to learn: from when on it is told, and from when on it is wrong."""
_MUCH_CUT = 0.1
_ENDLESS = "no sample teaches"
"""So the engine's warning begins."""
_MOST_SHOWN = 6000


def verdict(record: Record) -> Verdict:
    """Whether this can be learned from."""
    if (error := record.get("error")) is not None:
        way_out = error["remediation"]
        if wants_skipping(record):
            way_out = "mend the line, or press s: lines that can't be read are left out"
        return Verdict("bad", f"{_place(error)}{_sentence(error['message'])}", way_out)
    if record.get("raw"):
        return _raw_verdict(record)
    rows, lost = record["num_rows"], int(sum(record["dropped"].values()))
    gives = "gives" if lost == 1 else "give"
    cut, samples = record["num_truncated"], record["num_samples"]
    if rows and lost / rows > _BAD_PART:
        return Verdict("bad", f"{lost:,} of {rows:,} rows {gives} nothing to learn", _cure(record))
    if rows and lost / rows > _WARN_PART:
        return Verdict("warn", f"{lost:,} of {rows:,} rows {gives} nothing to learn", _cure(record))
    if endless := next((w for w in record.get("warnings", ()) if w.startswith(_ENDLESS)), ""):
        said, _, way_out = endless.partition("; ")
        return Verdict("warn", _sentence(said), _sentence(way_out))
    if samples and cut / samples > _MUCH_CUT:
        longest = f"l sets max_seq_length to {record['longest']:,}, which would cut none"
        return Verdict("warn", f"{cut:,} of {samples:,} samples are cut", longest)
    return Verdict("ok", f"{samples:,} samples to learn from")


def wants_skipping(record: Record | None) -> bool:
    """Leaving out bad lines would help."""
    error = (record or {}).get("error") or {}
    return "on_bad_line: skip to leave" in error.get("remediation", "")


def lengths_of(record: Record, data: str, model: str) -> Lengths:
    """What Config wants to know of counted samples."""
    lengths, num_cut = record["lengths"], record["num_truncated"]
    below = lengths[: len(lengths) - num_cut]
    return Lengths(data, model, record["max_seq_length"], below, record["overlong"])


def _place(error: Record) -> str:
    """The line and column that an error is about, in words."""
    found = re.search(r":(\d+)(?::(\d+))?$", error.get("where", ""))
    if found is None:
        return ""
    line, column = found.groups()
    return f"Line {line}, column {column}: " if column else f"Line {line}: "


def _raw_verdict(record: Record) -> Verdict:
    if record["shape"] is None:
        return Verdict("bad", _unknown_keys(record), record["problem"].partition("-> ")[2])
    if record["num_unfit"]:
        number = record["num_unfit"]
        return Verdict(
            "bad", f"{number:,} rows have another shape than the first", record["problem"]
        )
    many = "at least " * record["is_cut"]
    return Verdict("ok", f"{many}{record['num_rows']:,} rows, read as {record['shape']}")


def _unknown_keys(record: Record) -> str:
    """In CSV keys are the names of columns."""
    what = "columns" if str(record["data"]).lower().endswith(".csv") else "keys"
    names = ", ".join(key["name"] for key in record["keys"][:4])
    return f"Poros knows no rows with the {what} {names}"


def facts(record: Record) -> Iterator[Fact]:
    """What a person wants to know first."""
    if record.get("error"):
        return
    shape = record["shape"]
    yield Fact(
        "shape", READ_AS.get(shape, str(shape or "none that is known")), "" if shape else "bad"
    )
    if shape in MAPPING:
        yield Fact("read as", MAPPING[shape])
    if record.get("raw"):
        yield from _raw_facts(record)
        return
    yield Fact("rows", f"{record['num_rows']:,}")
    samples, tokens = record["num_samples"], record["num_tokens"]
    trained = record["num_label_tokens"]
    yield Fact("samples", f"{samples:,}")
    part = f" ({100 * trained / tokens:.0f} %)" if tokens else ""
    yield Fact("tokens", f"{tokens:,}")
    yield Fact("trained", f"{trained:,}{part}", "" if trained else "bad")
    yield from _losses(record)
    yield _duplicates(record)


def _raw_facts(record: Record) -> Iterator[Fact]:
    many = "at least " * record["is_cut"]
    yield Fact("rows", f"{many}{record['num_rows']:,}, {gigabytes(record['num_bytes'])}")
    keys = ", ".join(key["name"] for key in record["keys"][:8])
    yield Fact("keys", keys)
    if record["bad_lines"]:
        yield Fact("unreadable", f"{len(record['bad_lines'])} lines, left out", "warn")
    yield _duplicates(record)


def _losses(record: Record) -> Iterator[Fact]:
    dropped = record["dropped"]
    if not dropped:
        yield Fact("dropped", "none", "ok")
    for reason, number in dropped.items():
        lines = record["dropped_lines"].get(reason, [])
        where = (
            f": row {', '.join(map(str, lines[:4]))}{', ...' * (len(lines) > 4)}" if lines else ""
        )
        yield Fact("dropped", f"{number:,} {_REASONS.get(reason, reason)}{where}", "warn")
    cut = record["num_truncated"]
    longest = f"the longest has {record['longest']:,}"
    yield Fact("cut", f"{cut:,}, {longest}" if cut else f"none, {longest}", "warn" if cut else "ok")


def _duplicates(record: Record) -> Fact:
    pairs = record["duplicates"]
    if not pairs:
        return Fact("twice", "none", "ok")
    shown = ", ".join(f"{line} (as {first})" for line, first in pairs[:2])
    more = ", ..." if len(pairs) > 2 else ""
    state: State = "warn" if len(pairs) > _WARN_PART * record["num_rows"] else ""
    return Fact("twice", f"{len(pairs):,}: row {shown}{more}", state)


def sample_text(sample: Record) -> Content:
    """A sample with what is trained marked by colour and by signs."""
    is_plain = glyphs.chosen().is_plain
    begins, ends = ("<<", ">>") if is_plain else ("«", "»")
    left, parts = _MOST_SHOWN, []
    for text, is_trained in sample["pieces"]:
        shown = _lines(text[: max(0, left)])
        left -= len(text)
        if is_trained:
            parts.append(Content.styled(f"{begins}{shown}{ends}", "bold $success"))
        else:
            parts.append(Content.styled(shown, "$secondary"))
    if left < 0:
        parts.append(Content.styled(f"\n... and {-left:,} more characters", "$secondary"))
    return Content("").join(parts)


def raw_text(row: Record) -> Content:
    """A row as it stands: its turns, or its keys and values."""
    turns = row["turns"]
    pairs = [(turn["role"], turn["text"]) for turn in turns] if turns else row["fields"].items()
    parts = [
        (Content.styled(f"{safe(name)}\n", "bold") if name else Content("")) + Content(_lines(text))
        for name, text in pairs
    ]
    return Content("\n\n").join(parts)


def _cure(record: Record) -> str:
    """Where to look first."""
    for reason, lines in record["dropped_lines"].items():
        return f"look at row {lines[0]}: {_REASONS.get(reason, reason)}"
    return str(record["bad_lines"][0]) if record["bad_lines"] else ""


def first_trained(sample: Record) -> int:
    """The line in which the first trained piece begins, from 0."""
    before = ""
    for text, is_trained in sample["pieces"]:
        if is_trained:
            break
        before += text
    return before.count("\n")


def examples() -> Content:
    """A row of each shape."""
    lines = []
    for name, row in _EXAMPLES.items():
        lines.append(Content.styled(f"{name}\n", "bold") + Content.styled(row, "$secondary"))
    tail = "In CSV these are the names of the columns."
    return Content("\n").join([*lines, Content.styled(tail, "$secondary")])


def _lines(text: str) -> str:
    return "\n".join(map(safe, text.split("\n")))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
