"""Cards through a made-up `nvidia-smi`, where the driver's library is not there."""

import sys

import pytest

from poros import doctor_smi
from poros.doctor_gpu import gpu_rows, read_driver
from poros.doctor_power import Power
from tests.engine.doctor.test_doctor_gpu import FakeNvml

MIB = 2**20
CARD = (
    "0, GPU-1, NVIDIA GeForce RTX 4070, 12282, 11000, 8.9, 550.54.14, 1, 16, 4, 16, [N/A],"
    " 35.10, 200.00, 200.00, 51"
)


@pytest.fixture
def smi(tmp_path, monkeypatch):
    """Puts a script in place of the command."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(doctor_smi, "_WSL_PLACE", tmp_path / "none")
    monkeypatch.setattr(doctor_smi, "_LIMIT_S", 0.5)
    broken = FakeNvml("nvmlInit", message="NVML Shared Library Not Found")
    monkeypatch.setitem(sys.modules, "pynvml", broken)

    def put(cards, processes="", ending=""):
        path = tmp_path / "nvidia-smi"
        path.write_text(
            "#!/bin/sh\n"
            f'case "$1" in *query-gpu*) echo "{cards}";; *) echo "{processes}";; esac\n{ending}\n'
        )
        path.chmod(0o755)

    return put


def test_the_command_is_asked_where_the_library_is_missing(smi):
    smi(CARD, "GPU-1, 1, 512\nGPU-2, 7, 9\nGPU-1, 2, [N/A]")
    found = read_driver()
    assert (found.version, found.failure) == ("550.54.14", "")
    [gpu] = found.gpus
    assert (gpu.name, gpu.capability) == ("NVIDIA GeForce RTX 4070", (8, 9))
    assert (gpu.total_bytes, gpu.free_bytes) == (12282 * MIB, 11000 * MIB)
    assert (gpu.link, gpu.mig) == ((1, 16, 4, 16), False)
    assert gpu.power == Power(35.1, 200.0, 200.0, 51)
    assert [(user.pid, user.used_bytes) for user in gpu.users] == [(1, 512 * MIB), (2, None)]
    assert {row.id: row.state for row in gpu_rows(found)}["gpu0"] == "ok"


def test_a_link_that_is_not_told_is_unknown(smi):
    smi(CARD.replace("4, 16,", "[N/A], 16,"))
    assert read_driver().gpus[0].link is None


@pytest.mark.parametrize(
    ("cards", "ending"),
    [
        ("", ""),
        ("NVIDIA-SMI has failed because it could not talk to the driver", "exit 9"),
        ("0, GPU-1", ""),
        (CARD.replace("8.9", "[N/A]"), ""),
        (CARD, "while :; do :; done"),
    ],
)
def test_nonsense_failure_and_a_hang_leave_what_the_library_said(smi, cards, ending):
    smi(cards, ending=ending)
    assert read_driver().failure == "NVML Shared Library Not Found"


def test_without_the_command_the_librarys_word_stands(smi):
    assert read_driver().failure == "NVML Shared Library Not Found"
