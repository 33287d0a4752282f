from __future__ import annotations

import pytest
import torch

from poros.errors import PorosHostMemoryError, PorosOOMError
from poros.events import Event
from poros.loading.phases import device_peak, memory_errors, phase_events


def test_a_phase_reports_begin_and_end() -> None:
    recorded: list[Event] = []
    with phase_events("load", recorded.append):
        pass
    assert [event.name for event in recorded] == ["phase_started", "phase_finished"]


def test_a_phase_that_fails_reports_no_end() -> None:
    recorded: list[Event] = []
    with pytest.raises(ValueError, match="no"), phase_events("load", recorded.append):
        raise ValueError("no")
    assert [event.name for event in recorded] == ["phase_started"]


def test_the_cpu_has_no_device_peak() -> None:
    with device_peak(torch.device("cpu")) as peak:
        torch.ones(10)
    assert peak == [0]


def test_the_allocators_own_refusal_is_a_host_memory_error() -> None:
    with pytest.raises(PorosHostMemoryError), memory_errors():
        torch.empty(2**60, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), PorosHostMemoryError),
        (torch.OutOfMemoryError("CUDA out of memory"), PorosOOMError),
        (RuntimeError("something else"), RuntimeError),
    ],
)
def test_only_running_out_of_memory_is_renamed(error: Exception, expected: type[Exception]) -> None:
    with pytest.raises(expected), memory_errors():
        raise error
