"""What is told of the card: the one that a run would take, by nvidia-smi's figures."""

import sys
from types import SimpleNamespace

import pytest

from poros_tui.engine.machine import _Nvml, look


class NVMLError(Exception):
    pass


def memory_of(handle, version=1):
    taken = {0: 10, 1: 20, "GPU-ab": 30}[handle]
    return SimpleNamespace(total=100, used=taken if version == 2 else taken + 5)


DRIVER = SimpleNamespace(
    NVMLError=NVMLError,
    nvmlMemory_v2=2,
    nvmlInit=lambda: None,
    nvmlDeviceGetHandleByIndex=lambda index: index,
    nvmlDeviceGetHandleByUUID=lambda uuid: uuid,
    nvmlDeviceGetName=lambda handle: f"card {handle}",
    nvmlDeviceGetMemoryInfo=memory_of,
)


@pytest.mark.parametrize(
    ("visible", "used"), [(None, 10), ("1", 20), ("1,0", 20), ("GPU-ab", 30), ("", None)]
)
def test_the_card_is_the_first_that_a_run_sees(tmp_path, monkeypatch, visible, used):
    monkeypatch.setitem(sys.modules, "pynvml", DRIVER)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = look(tmp_path, _Nvml())
    assert found.card_used_bytes == used
    assert found.card_total_bytes == (None if used is None else 100)


def driver(**known):
    """A driver's library that has these functions; the values are what they say."""

    def answers(value):
        def function(*arguments):
            if isinstance(value, Exception):
                raise value
            return value

        return function

    basics = {
        "nvmlInit": None,
        "nvmlDeviceGetHandleByIndex": 0,
        "nvmlDeviceGetName": b"RTX",
        "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=100, used=70),
    }
    functions = {name: answers(value) for name, value in (basics | known).items()}
    return SimpleNamespace(NVMLError=NVMLError, **functions)


IDLE, POWER_LIMIT, SOFT_HEAT, HARD_HEAT, BRAKE = 0x1, 0x4, 0x20, 0x40, 0x80


@pytest.mark.parametrize(
    ("known", "celsius", "watts", "slowed"),
    [
        ({}, None, None, None),
        ({"nvmlDeviceGetTemperature": 64, "nvmlDeviceGetPowerUsage": 171_600}, 64, 171.6, None),
        ({"nvmlDeviceGetTemperature": NVMLError("no sensor"),
          "nvmlDeviceGetCurrentClocksEventReasons": IDLE}, None, None, False),
        # At its power limit is where a card that works should be.
        ({"nvmlDeviceGetCurrentClocksEventReasons": POWER_LIMIT}, None, None, False),
        ({"nvmlDeviceGetCurrentClocksEventReasons": POWER_LIMIT | SOFT_HEAT}, None, None, True),
        ({"nvmlDeviceGetCurrentClocksThrottleReasons": HARD_HEAT}, None, None, True),
        ({"nvmlDeviceGetCurrentClocksThrottleReasons": BRAKE}, None, None, True),
    ],
)  # fmt: skip
def test_heat_is_told_as_far_as_the_driver_knows_it(tmp_path, known, celsius, watts, slowed):
    found = look(tmp_path, _Nvml(driver(**known)))
    assert (found.card, found.card_total_bytes, found.card_used_bytes) == ("RTX", 100, 70)
    assert (found.card_celsius, found.card_watts, found.card_slowed) == (celsius, watts, slowed)


def test_without_a_card_nothing_is_told_of_it(tmp_path):
    found = look(tmp_path, _Nvml(driver(nvmlInit=NVMLError("no driver"))))
    told = (found.card_total_bytes, found.card_celsius, found.card_watts, found.card_slowed)
    assert (found.card, told) == ("", (None,) * 4)
    assert found.ram_total_bytes
    assert found.disk_free_bytes
