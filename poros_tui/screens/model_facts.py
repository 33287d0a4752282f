"""What `poros check --table --json` said of a model, in words for the screen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from poros_tui.engine.machine import Machine
from poros_tui.screens.verdict import Verdict
from poros_tui.widgets.facts import Fact
from poros_tui.words import duration, gigabytes

Record = Mapping[str, Any]

_SMALL_PART = 0.02
_PARTS = {
    "resident blocks": "blocks that stay",
    "slots of the ring": "blocks passing through",
    "activations and gradients": "the step itself",
    "moments": "optimizer",
    "head": "output head",
    "CUDA and margin": "CUDA and margin",
}


def verdict(record: Record) -> Verdict:
    """Of a report, or of an error in its place."""
    if (error := record.get("error")) is not None:
        return Verdict("bad", _sentence(error["message"]), error["remediation"])
    if refusals := record.get("refusals"):
        first = refusals[0]
        is_gated = first["message"].startswith("gated: ")
        said = first["message"].removeprefix("gated: ").partition(" (HTTP")[0]
        head = "Not yet" if is_gated else "Can't be trained"
        return Verdict(
            "bad", f"{head}: {said if is_gated else first['message']}", first["remediation"]
        )
    family = record["labels"]["architecture"]
    if family == "certified":
        return Verdict("ok", "Can be trained, and the family is certified")
    if family == "user-asserted":
        return Verdict("warn", "Can be trained as you declared it; nothing is claimed to be exact")
    return Verdict("warn", "Can be trained; nobody has proved this family yet")


def facts(record: Record, machine: Machine) -> Iterator[Fact]:
    """What a person wants to know first, the most important first."""
    if record.get("error"):
        return
    yield from _about(record)
    yield from _hub(record, machine)
    if record["chat_template"] is not None:
        yield (
            Fact("chat", "has a chat template", "ok")
            if record["chat_template"]
            else Fact("chat", "no chat template: learns plain text only", "warn")
        )
    if needs := record.get("needs"):
        yield from _needs(needs, machine)
    ended = [run for run in record.get("measured", ()) if not run["ran_out"]]
    for run in ended[-1:]:
        took = f"{run['tokens']:,} tokens took {run['device_bytes'] / 1e9:.1f} GB"
        yield Fact("measured", f"{took}, {_seconds(run['step_s'])} a step", "ok")


def _about(record: Record) -> Iterator[Fact]:
    part = f", the text part of {record['part_of']}" if record["part_of"] else ""
    label = record["labels"]["architecture"]
    yield Fact("family", f"{record['model_type']}{part}", "" if label == "certified" else "warn")
    if size := record.get("sizes"):
        told = f"{_count(size['num_params'])}, {size['num_layers']} layers"
        yield Fact("size", told)
        whole, packed = gigabytes(size["dense_bytes"]), gigabytes(size["nf4_bytes"])
        yield Fact("weights", packed if record["prequantised"] else f"{whole}, {packed} in NF4")
    if record["prequantised"]:
        told = "into 16 bits only: these files are 4-bit already, name the original then"
        yield Fact("export", told, "warn")
    if label == "certified" and record["labels"]["stack"] != "certified":
        yield Fact("versions", "proved on others: `poros parity --demo` tries it here", "warn")


def _hub(record: Record, machine: Machine) -> Iterator[Fact]:
    hub = record.get("hub")
    if record["folder"]:
        yield Fact("files", "on this computer", "ok")
    if hub is None:
        if record["note"]:
            yield Fact("Hub", record["note"])
        return
    yield Fact("licence", hub["licence"] or "none is given", "" if hub["licence"] else "warn")
    if hub["gated"]:
        yield Fact("terms", "gated: its owner wants terms accepted", "warn")
    if not record["folder"] and hub["download_bytes"] is not None:
        size, free = hub["download_bytes"], machine.disk_free_bytes
        is_too_much = free is not None and size > free
        told = gigabytes(size) + (f", {gigabytes(free)} free" if free is not None else "")
        yield Fact("download", told, "bad" if is_too_much else "")


def _needs(needs: Record, machine: Machine) -> Iterator[Fact]:
    low, high = needs["host_bytes"]
    free = machine.ram_free_bytes
    told = _between(low, high)
    if free is not None and low > free:
        disk = needs["host_bytes_with_blocks_on_disk"]
        yield Fact(
            "RAM", f"{told}, {gigabytes(free)} are free; from disk {_between(*disk)}", "warn"
        )
    else:
        yield Fact("RAM", told + (f", {gigabytes(free)} free" if free is not None else ""))
    kept = needs["cache_bytes"]
    once = f"{gigabytes(kept)}, " if kept else ""
    yield Fact("disk", f"{once}{gigabytes(needs['checkpoint_bytes'])} a checkpoint")
    card = needs["smallest_card_gb"]
    room = f"{card} GB or more" if card else "none is large enough"
    yield Fact("card", room, "" if card else "bad")


def cell_words(table: Record, row: int, column: int) -> tuple[str, str]:
    """A cell in a heading and a sentence or two."""
    cell, card = table["cells"][row][column], table["columns"][column]
    name = (
        f"{card['name']} as free as it is now"
        if card["here"]
        else f"{_article(card['name'])} {card['name']} card"
    )
    head = f"{table['lengths'][row]:,} tokens on {name}"
    memory = _between(*cell["device_bytes"])
    if cell["verdict"] == "no":
        return head, f"Does not fit: it needs {memory}. {_longest(card)}"
    kept = f"{cell['num_resident']} of {cell['num_blocks']} blocks stay on the card"
    rest = "" if cell["num_resident"] == cell["num_blocks"] else ", the others stream through it"
    if cell.get("measured"):
        took = f"A run here took {cell['device_bytes'][0] / 1e9:.1f} GB"
        each = f", {_seconds(cell['step_s'][0])} a step" if cell["step_s"] else ""
        return head, f"{took}{each}; {kept}{rest}. {_longest(card)}"
    tight = "Tight: within the error of the estimate. " if cell["verdict"] == "tight" else ""
    said = [f"{tight}Takes {memory}; {kept}{rest}.", _time(cell), _longest(card)]
    return head, " ".join(filter(None, said))


def parts(cell: Record) -> list[tuple[str, int]]:
    """What the card's memory is for, in bytes, the largest first; small things are one."""
    found = {name: size for name, size in cell["parts"].items() if size}
    whole = sum(found.values())
    small = [name for name, size in found.items() if size < whole * _SMALL_PART]
    told = [(_PARTS.get(name, name), size) for name, size in found.items() if name not in small]
    told.sort(key=lambda pair: -pair[1])
    rest = sum(found[name] for name in small)
    return [*told, ("all else", rest)] if rest else told


def _longest(card: Record) -> str:
    if not card["longest"]:
        return "No length fits."
    return f"Up to {card['longest']:,} tokens fit this card."


def _article(name: str) -> str:
    return "an" if name.startswith(("8", "11 ", "18 ")) else "a"


def _time(cell: Record) -> str:
    if cell["step_s"] is None:
        return ""
    low, high = cell["step_s"]
    why = "arithmetic" if cell["bottleneck"].startswith("arith") else cell["bottleneck"]
    return f"A step takes {_seconds(low)} to {_seconds(high)}, limited by {why}."


def _seconds(seconds: float) -> str:
    return duration(seconds) if seconds >= 10 else f"{seconds:.1f} s"


def _between(low: int, high: int) -> str:
    digits = 1 if high < 1e11 else 0
    return f"{low / 1e9:.{digits}f}-{high / 1e9:.{digits}f} GB"


def _count(number: int) -> str:
    return f"{number / 1e9:.1f} billion" if number >= 1e9 else f"{number / 1e6:.0f} million"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
