"""Rows of cards, from a driver's library that is made up."""

import builtins
import sys
from types import SimpleNamespace

import pytest

from poros.doctor_cards import Driver, Gpu, User, process_name
from poros.doctor_gpu import gpu_rows, read_driver, visible_gpus

GB = 10**9
CARD = Gpu(0, "RTX 4070", 12 * GB, 11 * GB, (8, 9), (4, 16, 4, 16))


def driver(*gpus: Gpu, **changes: object) -> Driver:
    return Driver(**{"version": "550.54", "cuda": "12.4", "gpus": gpus} | changes)


def states(found: Driver) -> dict[str, str]:
    return {row.id: row.state for row in gpu_rows(found)}


@pytest.fixture(autouse=True)
def _no_smi(monkeypatch):
    """The machine of the tests may have the command."""
    monkeypatch.setattr("poros.doctor_gpu.read_smi", lambda: None)


class FakeNvml(SimpleNamespace):
    """One card; `broken` names calls that raise."""

    class NVMLError(Exception):
        pass

    def __init__(self, *broken: str, message: str = "Not Supported") -> None:
        answers = {
            "nvmlInit": None,
            "nvmlShutdown": None,
            "nvmlDeviceGetCount": 1,
            "nvmlSystemGetDriverVersion": b"550.54.14",
            "nvmlSystemGetCudaDriverVersion": 12040,
            "nvmlDeviceGetHandleByIndex": object(),
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=12 * GB, free=11 * GB),
            "nvmlDeviceGetCudaComputeCapability": (8, 9),
            "nvmlDeviceGetName": "RTX 4070",
            "nvmlDeviceGetCurrPcieLinkGeneration": 1,
            "nvmlDeviceGetCurrPcieLinkWidth": 8,
            "nvmlDeviceGetMaxPcieLinkGeneration": 4,
            "nvmlDeviceGetMaxPcieLinkWidth": 16,
            "nvmlDeviceGetComputeRunningProcesses": [SimpleNamespace(pid=1, usedGpuMemory=None)],
            "nvmlDeviceGetGraphicsRunningProcesses": [],
            "nvmlDeviceGetMigMode": [0, 0],
        }
        super().__init__(**{name: self._call(name, answers, broken, message) for name in answers})

    def _call(self, name, answers, broken, message):
        def call(*_):
            if name in broken:
                raise self.NVMLError(message)
            return answers[name]

        return call


def test_a_card_is_read_through_the_drivers_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml())
    found = read_driver()
    assert (found.version, found.cuda, found.failure) == ("550.54.14", "12.4", "")
    [gpu] = found.gpus
    assert (gpu.name, gpu.capability, gpu.link) == ("RTX 4070", (8, 9), (1, 8, 4, 16))
    assert [user.pid for user in gpu.users] == [1]


def test_what_a_driver_does_not_support_is_left_out(monkeypatch):
    broken = [
        "nvmlDeviceGetCurrPcieLinkGeneration",
        "nvmlDeviceGetComputeRunningProcesses",
        "nvmlDeviceGetMigMode",
        "nvmlSystemGetCudaDriverVersion",
    ]
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(*broken))
    found = read_driver()
    assert states(found) == {
        "driver": "ok", "gpu0": "ok", "gpu0_link": "unknown", "gpu0_processes": "ok"
    }  # fmt: skip


def test_a_library_that_does_not_start_is_a_failure(monkeypatch):
    monkeypatch.setitem(
        sys.modules, "pynvml", FakeNvml("nvmlInit", message="NVML Shared Library Not Found")
    )
    assert read_driver().failure == "NVML Shared Library Not Found"


def test_without_the_package_cards_are_unknown(monkeypatch):
    real = builtins.__import__

    def refuse(name, *rest, **named):
        if name == "pynvml":
            raise ImportError(name)
        return real(name, *rest, **named)

    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.setattr(builtins, "__import__", refuse)
    [row] = gpu_rows(read_driver())
    assert (row.state, row.fix) == ("unknown", "pip install nvidia-ml-py")


def test_no_card_is_a_warning():
    [row] = gpu_rows(Driver(failure="NVML Shared Library Not Found", hardware=False))
    assert (row.id, row.state) == ("gpu", "warn")
    assert "CPU" in row.meaning


def test_a_card_without_its_driver_is_bad():
    [row] = gpu_rows(Driver(failure="Driver Not Loaded", hardware=True))
    assert row.state == "bad"
    assert "--gpus all" in row.fix


def test_a_driver_that_was_updated_under_its_module_wants_a_restart():
    [row] = gpu_rows(Driver(failure="Driver/library version mismatch", hardware=True))
    assert (row.state, row.fix) == ("bad", "restart the machine")


def test_a_good_card_is_ok_in_all_rows():
    assert set(states(driver(CARD)).values()) == {"ok"}


def test_an_old_driver_is_bad():
    assert states(driver(CARD, version="470.256"))["driver"] == "bad"


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({"capability": (7, 5)}, "bad"),
        ({"total_bytes": 2 * GB, "free_bytes": 2 * GB}, "warn"),
        ({}, "ok"),
    ],
)
def test_a_card(changes, state):
    fields = {name: getattr(CARD, name) for name in CARD.__slots__} | changes
    assert states(driver(Gpu(**fields)))["gpu0"] == state


def test_half_the_lanes_are_a_warning_and_a_resting_link_is_not():
    def state(*link):
        return states(driver(Gpu(0, "x", 12 * GB, 12 * GB, (8, 9), link)))["gpu0_link"]

    assert state(4, 8, 4, 16) == "warn"
    assert state(1, 16, 4, 16) == "ok"


def test_processes_that_hold_much_are_named():
    users = (User(7, "python", 6 * GB), User(8, "a process outside this container", None))
    [*_, row] = gpu_rows(driver(Gpu(0, "x", 12 * GB, 5 * GB, (8, 9), None, users)))
    assert row.state == "warn"
    assert row.what == "python (pid 7, 6.0 GB), a process outside this container (pid 8)"
    assert "7.0 GB" in row.meaning


def test_a_desktop_that_holds_little_is_ok():
    users = (User(7, "Xorg", GB // 10),)
    assert states(driver(Gpu(0, "x", 12 * GB, 11 * GB, (8, 9), None, users)))[
        "gpu0_processes"
    ] == "ok"  # fmt: skip


@pytest.mark.parametrize(
    ("value", "seen"), [(None, [0, 1]), ("1", [1]), ("1,0", [1, 0]), ("", []), ("0,-1,1", [0])]
)
def test_visible_cards_are_counted_as_cuda_does(value, seen):
    cards = driver(CARD, Gpu(1, "y", GB, GB, (9, 0)))
    environ = {} if value is None else {"CUDA_VISIBLE_DEVICES": value}
    assert [gpu.index for gpu in visible_gpus(cards, environ)] == seen


def test_a_process_of_ours_has_its_name():
    assert process_name(2**30) == "a process outside this container"
