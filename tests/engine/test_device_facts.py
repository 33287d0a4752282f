"""A card's memory by a driver that tells all, some, or nothing."""

import os
from types import SimpleNamespace

import pytest

from poros.device_facts import Card, CardHeat, CardMemory


class NVMLError(Exception):
    pass


class Driver:
    """The functions of the driver's library that are asked."""

    NVMLError = NVMLError
    nvmlMemory_v2 = 2

    def __init__(self, *, old=False, processes=(), broken=()):
        self.old, self.processes, self.broken = old, processes, broken

    def nvmlInit(self):  # noqa: N802
        self._maybe("init")

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802
        if uuid != "GPU-1-2":
            raise NVMLError("no such card")
        return uuid

    def nvmlDeviceGetMemoryInfo(self, handle, version=1):  # noqa: N802
        self._maybe("memory")
        if self.old and version == 2:
            raise NVMLError("unknown function")
        # The first version counts what the driver keeps for itself as used.
        return SimpleNamespace(used=70 if version == 2 else 75, total=100)

    def nvmlDeviceGetComputeRunningProcesses(self, handle):  # noqa: N802
        self._maybe("processes")
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.processes]

    def _maybe(self, what):
        if what in self.broken:
            raise NVMLError(what)


@pytest.mark.parametrize(
    ("driver", "expected"),
    [
        (Driver(processes=[(1, 20), (os.getpid(), 45)]), CardMemory(70, 100, 25)),
        (Driver(processes=[(os.getpid(), 45)], old=True), CardMemory(75, 100, 30)),
        (Driver(processes=[(1, 20)]), CardMemory(70, 100, None)),
        (Driver(processes=[(os.getpid(), None)]), CardMemory(70, 100, None)),
        (Driver(broken=["processes"]), CardMemory(70, 100, None)),
        (Driver(broken=["memory"]), None),
        (Driver(broken=["init"]), None),
    ],
)
def test_what_others_have_is_told_only_where_the_driver_knows_ours(driver, expected):
    assert Card("1-2", driver).memory() == expected


def test_a_card_of_another_name_is_none():
    assert Card("GPU-1-2", Driver()).memory() is not None
    assert Card("3-4", Driver()).memory() is None


IDLE, POWER_LIMIT, SOFT_HEAT, HARD_HEAT, BRAKE = 0x1, 0x4, 0x20, 0x40, 0x80
TEMPERATURE, POWER = "nvmlDeviceGetTemperature", "nvmlDeviceGetPowerUsage"
EVENTS = "nvmlDeviceGetCurrentClocksEventReasons"
THROTTLE = "nvmlDeviceGetCurrentClocksThrottleReasons"


@pytest.mark.parametrize(
    ("known", "celsius", "watts", "slowed"),
    [
        ({}, None, None, None),
        ({TEMPERATURE: 64, POWER: 171_600}, 64, 171.6, None),
        ({TEMPERATURE: NVMLError("no sensor"), EVENTS: IDLE}, None, None, False),
        # At its power limit is where a card that works should be.
        ({EVENTS: POWER_LIMIT}, None, None, False),
        ({EVENTS: POWER_LIMIT | SOFT_HEAT}, None, None, True),
        ({THROTTLE: HARD_HEAT}, None, None, True),
        ({THROTTLE: BRAKE}, None, None, True),
    ],
)
def test_heat_is_told_as_far_as_the_driver_knows_it(known, celsius, watts, slowed):
    driver = Driver()
    for name, value in known.items():
        setattr(driver, name, lambda *_, value=value: said(value))
    heat = Card("1-2", driver).heat()
    assert (heat.celsius, heat.watts, heat.slowed) == (celsius, watts, slowed)
    assert Card("3-4", driver).heat() == CardHeat()  # of another card nothing is said


def said(value):
    if isinstance(value, Exception):
        raise value
    return value
