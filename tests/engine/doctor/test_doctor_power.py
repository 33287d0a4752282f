"""Rows of power, heat and the terminal, from what is made up."""

from types import SimpleNamespace

import pytest

from poros.doctor_power import Power, power_rows, read_power
from poros.doctor_terminal import terminal_row

COOL = Power(31.0, 200.0, 200.0, 46, 90)


@pytest.mark.parametrize(
    ("power", "states"),
    [
        (COOL, {"gpu2_power": "ok", "gpu2_heat": "ok"}),
        (Power(), {}),
        (Power(celsius=60), {"gpu2_heat": "ok"}),
        (Power(90.0, 110.0, 200.0, 50, 90), {"gpu2_power": "warn", "gpu2_heat": "ok"}),
        (Power(90.0, 170.0, 200.0, 86, 90), {"gpu2_power": "ok", "gpu2_heat": "warn"}),
        (Power(90.0, 200.0, 200.0, 70, is_hot=True), {"gpu2_power": "ok", "gpu2_heat": "warn"}),
        (Power(90.0, 200.0, is_braked=True), {"gpu2_power": "warn"}),
    ],
)
def test_what_slows_a_card_down_is_a_warning_with_its_mending(power, states):
    rows = list(power_rows(2, power))
    assert {row.id: row.state for row in rows} == states
    assert all(bool(row.fix) == (row.state == "warn") for row in rows)


def test_a_limit_below_the_makers_is_raised_by_the_command_that_is_named():
    row = next(power_rows(2, Power(90.0, 110.0, 200.0)))
    assert row.what == "90 W of at most 110 W, its maker's limit is 200 W"
    assert row.fix == "sudo nvidia-smi -i 2 -pl 200"


class Nvml(SimpleNamespace):
    """An older library: one question has its older name, one is not answered."""

    class NVMLError(Exception):
        pass

    def nvmlDeviceGetTemperatureThreshold(self, handle, kind):  # noqa: N802
        raise self.NVMLError("Not Supported")


@pytest.mark.parametrize(("reasons", "hot"), [(0x0, False), (0x20, True), (0x44, True)])
def test_each_question_stands_alone(reasons, hot):
    nvml = Nvml(
        nvmlDeviceGetPowerUsage=lambda handle: 31_000,
        nvmlDeviceGetTemperature=lambda handle, sensor: 46,
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: reasons,
    )
    assert read_power(nvml, object()) == Power(31.0, None, None, 46, None, is_hot=hot)


@pytest.mark.parametrize(
    ("environ", "state", "what"),
    [
        ({}, "warn", "TERM is not set"),
        ({"TERM": "dumb"}, "warn", "TERM is dumb"),
        ({"TERM": "xterm-256color"}, "ok", "xterm-256color"),
        ({"TERM": "xterm", "LANG": "C"}, "warn", "xterm, locale C"),
        ({"TERM": "linux", "LC_ALL": "en_GB.utf8", "LANG": "C"}, "ok", "linux"),
        ({"TERM": "tmux-256color", "TMUX": "1", "SSH_CONNECTION": "1"}, "ok",
         "tmux-256color, in tmux, over SSH"),
        ({"TERM": "screen", "STY": "1", "COLORTERM": "truecolor"}, "ok", "screen, in screen"),
    ],
)  # fmt: skip
def test_a_terminal_that_can_not_show_the_screens_says_so(environ, state, what):
    row = terminal_row(environ)
    assert (row.state, row.what) == (state, what)
    assert bool(row.fix) == (state == "warn")
