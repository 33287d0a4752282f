"""Numbers, sizes, times and paths as people read them: the only place that makes units pretty."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path

_LEAST_HEAD = 4


def gigabytes(num_bytes: float) -> str:
    """A size in powers of ten: ``1.9 GB``, ``38 MB``; what is there is never told as 0.0 GB."""
    if num_bytes < 1e6:
        return f"{num_bytes / 1e3:.0f} kB" if num_bytes >= 1000 else f"{num_bytes:.0f} bytes"
    if num_bytes < 1e8:
        return f"{num_bytes / 1e6:.0f} MB"
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes < 1e11 else f"{num_bytes / 1e9:,.0f} GB"


def of_gigabytes(part_bytes: float, whole_bytes: float) -> str:
    """``1.9 of 12.0 GB``; each with the digits that its own size leaves of use."""
    part, whole = gigabytes(part_bytes) if part_bytes else "0", gigabytes(whole_bytes)
    return f"{part.removesuffix(' ' + whole.split()[-1])} of {whole}"


def duration(seconds: float) -> str:
    """``1 h 24 min``, ``3 min 20 s``, ``12 s``; the two largest units."""
    if not math.isfinite(seconds):
        return "unknown"
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def ago(then_s: float, now_s: float) -> str:
    """How long ago a moment of the wall clock was, in one unit: ``5 min ago``, ``yesterday``."""
    past = now_s - then_s
    if past < 60:
        return "just now"
    if past < 3600:
        return f"{past // 60:.0f} min ago"
    if past < 86400:
        return f"{past // 3600:.0f} h ago"
    if past < 2 * 86400:
        return "yesterday"
    return f"{past // 86400:.0f} days ago"


def clock(time_s: float) -> str:
    """Local time of day, ``20:41``."""
    return time.strftime("%H:%M", time.localtime(time_s))


def short_path(path: Path | str, room: int = 0) -> str:
    """A path with home as ``~``; its middle goes where ``room`` columns don't suffice."""
    text = str(path)
    home = os.path.expanduser("~")  # noqa: PTH111  Path raises where there is none
    if home not in ("/", "~") and (text == home or text.startswith(home + "/")):
        text = "~" + text[len(home) :]
    return shortened(text, room) if room else text


def shortened(text: str, room: int, dots: str = "…") -> str:
    """At most ``room`` characters; the middle goes, since both ends tell names apart.

    The last name of a path stays whole where it can; little of a beginning tells nothing.
    """
    if len(text) <= room:
        return text
    kept = max(0, room - len(dots))
    name = len(text) - text.rfind("/") if "/" in text else 0
    tail = max(kept * 2 // 3, name if name <= kept else 0)
    if kept - tail < _LEAST_HEAD and tail == name:
        return dots + text[-name:]
    return (text[: kept - tail] + dots + (text[-tail:] if tail else ""))[: max(0, room)]


def begun(text: str, room: int, dots: str = "…") -> str:
    """At most ``room`` characters; the end goes: a model's name ends as many others do."""
    return text if len(text) <= room else f"{text[: max(0, room - len(dots))]}{dots}"


def safe(text: str) -> str:
    """A text of others that drives no terminal and stays on its line."""
    return "".join(c if c.isprintable() else " " for c in text)


def count(number: float) -> str:
    """``1,200``."""
    return f"{number:,.0f}"


def significant(number: float, digits: int = 4) -> str:
    """So many digits, without an exponent where that is short: ``1.284``, ``12,340``."""
    if not math.isfinite(number):
        return "not a number" if math.isnan(number) else "infinite"
    if number == 0:
        return "0"
    size = math.floor(math.log10(abs(number)))
    if -4 <= size < digits + 3:
        return f"{number:,.{max(0, digits - 1 - size)}f}"
    return f"{number:.{max(0, digits - 3)}e}"


def learning_rate(number: float) -> str:
    """``1.7e-4``, ``2e-5``."""
    if number == 0 or not math.isfinite(number):
        return significant(number)
    mantissa, _, exponent = f"{number:.1e}".partition("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
