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


def test_without_a_card_nothing_is_told_of_it(tmp_path, monkeypatch):
    def refuse():
        raise NVMLError("no driver")

    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(nvmlInit=refuse))
    found = look(tmp_path, _Nvml())
    assert (found.card, found.card_total_bytes, found.card_used_bytes) == ("", None, None)
    assert found.ram_total_bytes
    assert found.disk_free_bytes
