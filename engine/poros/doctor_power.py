"""Rows of `poros doctor` about a card's power and heat, which may hold it back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from poros.device_facts import asked, heat_of
from poros.doctor_rows import Row

_LITTLE_POWER = 0.8
"""Below this share of its usual power a card is told to be held back."""
_NEAR_CELSIUS = 5


@dataclass(frozen=True, slots=True)
class Power:
    """What a card draws and how warm it is; None where the driver does not say.

    Attributes:
        watts: Drawn now.
        limit_watts: The most that it may draw.
        usual_watts: What its maker set.
        celsius: Its temperature now.
        slow_celsius: From here on it slows itself down.
        is_hot: It slows itself down for heat now.
        is_braked: Its supply tells it to slow down.
    """

    watts: float | None = None
    limit_watts: float | None = None
    usual_watts: float | None = None
    celsius: int | None = None
    slow_celsius: int | None = None
    is_hot: bool = False
    is_braked: bool = False


def read_power(nvml: Any, handle: Any) -> Power:
    """Ask the driver's library; each question may be one that this card does not answer."""

    def watts(name: str) -> float | None:
        milliwatts = asked(nvml, name, handle)
        return None if milliwatts is None else milliwatts / 1000

    heat = heat_of(nvml, handle)
    return Power(
        heat.watts,
        watts("nvmlDeviceGetEnforcedPowerLimit"),
        watts("nvmlDeviceGetPowerManagementDefaultLimit"),
        heat.celsius,
        asked(nvml, "nvmlDeviceGetTemperatureThreshold", handle, 1),
        heat.is_hot,
        heat.is_braked,
    )


SMI_FIELDS = ("power.draw", "power.limit", "power.default_limit", "temperature.gpu")


def smi_power(card: Mapping[str, str]) -> Power:
    """Of nvidia-smi's answer to `SMI_FIELDS`, such as ``35.10`` or ``[N/A]``."""

    def number(name: str) -> float | None:
        try:
            return float(card[name])
        except ValueError:
            return None

    draw, limit, usual, celsius = map(number, SMI_FIELDS)
    return Power(draw, limit, usual, None if celsius is None else int(celsius))


def power_rows(index: int, power: Power) -> Iterator[Row]:
    """A row for power and one for heat; none for what the driver does not tell."""
    for row in (_power_row, _heat_row):
        found = row(index, power)
        if found is not None:
            yield found


def _power_row(index: int, power: Power) -> Row | None:
    limit, usual = power.limit_watts, power.usual_watts
    if limit is None:
        return None
    drawn = "" if power.watts is None else f"{power.watts:.0f} W of "
    what = f"{drawn}at most {limit:.0f} W"
    if usual and limit != usual:
        what += f", its maker's limit is {usual:.0f} W"
    row: Callable[..., Row] = lambda *rest: Row(f"gpu{index}_power", *rest)  # noqa: E731
    if power.is_braked:
        return row(
            "warn", what, "its power supply slows it down now",
            "look at the card's power cables, and at what else the supply feeds",
        )  # fmt: skip
    if usual and limit < _LITTLE_POWER * usual:
        return row(
            "warn", what, "it computes slower than it could; some want it so, for quiet",
            f"sudo nvidia-smi -i {index} -pl {usual:.0f}",
        )  # fmt: skip
    return row("ok", what, "it may draw what it is made for")


def _heat_row(index: int, power: Power) -> Row | None:
    now, slow = power.celsius, power.slow_celsius
    if now is None:
        return None
    what = f"{now} °C" + (f", slows down from {slow} °C" if slow else "")
    if power.is_hot or (slow and now >= slow - _NEAR_CELSIUS):
        meaning = (
            "it slows itself down to cool" if power.is_hot else "it is about to slow itself down"
        )
        fix = "give it more air: clean its fans, open the case, or lower its power limit"
        return Row(f"gpu{index}_heat", "warn", what, meaning, fix)
    return Row(f"gpu{index}_heat", "ok", what, "cool enough; a long run warms it")
