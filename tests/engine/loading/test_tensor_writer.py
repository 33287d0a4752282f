"""Our tensor files are save_file's to the byte, and are written without a copy of their tensors."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from poros.loading.tensor_writer import write_tensors
from poros.measure.fingerprint import same_bits

DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.float16, torch.bfloat16,
    torch.int32, torch.float32, torch.float64, torch.int64,
]  # fmt: skip
MIXED = {
    "z.scalar": torch.tensor(2.5),
    "a.empty": torch.empty(0, 3),
    'ünïcode.\x01."quoted"': torch.arange(7, dtype=torch.uint8),
    "b": torch.randn(3, 5).to(torch.bfloat16),
    "B": torch.randn(2, 1, 4).to(torch.float16),
    "a": torch.tensor([float("nan"), -0.0, float("inf")]),
    "state": torch.arange(5),
    "c": torch.randn(3, dtype=torch.float64),
    "flag": torch.tensor([True, False, True]),
}


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
@pytest.mark.parametrize("tensors", [MIXED, {"one": torch.ones(1)}, {}], ids=len)
def test_the_file_is_equal_to_save_files(tensors, metadata, tmp_path):
    save_file(tensors, tmp_path / "theirs", metadata=metadata)
    write_tensors(tensors, tmp_path / "ours", metadata=metadata)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_dtype_goes_where_save_file_puts_it(dtype, tmp_path):
    tensors = {str(other): torch.ones(2, 3).to(other) for other in DTYPES}
    tensors["another"] = torch.zeros(5).to(dtype)
    save_file(tensors, tmp_path / "theirs")
    write_tensors(tensors, tmp_path / "ours")
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_a_transposed_parameter_is_written_in_its_own_order(tmp_path):
    weight = torch.nn.Parameter(torch.randn(4, 6))
    write_tensors({"w": weight.t()}, tmp_path / "ours")
    assert same_bits(load_file(tmp_path / "ours")["w"], weight.detach().t().contiguous())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_an_oserror_with_its_number():
    with pytest.raises(OSError, match="No space") as caught:
        write_tensors(MIXED, Path("/dev/full"))
    assert caught.value.errno == errno.ENOSPC


_PEAK = """
import sys, torch
from pathlib import Path
from poros.loading.tensor_writer import write_tensors

def peak_kb():
    text = Path("/proc/self/status").read_text()
    return int(text.partition("VmHWM:")[2].split()[0])

tensors = {str(k): torch.full((4, 2**20), float(k)) for k in range(16)}
write_tensors({"warm": torch.ones(9)}, Path(sys.argv[1]))
before = peak_kb()
write_tensors(tensors, Path(sys.argv[1]))
print(peak_kb() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_writing_256_mib_takes_none_of_it_as_memory(tmp_path):
    run = subprocess.run(
        [sys.executable, "-c", _PEAK, str(tmp_path / "file")],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert (tmp_path / "file").stat().st_size > 2**28
    assert int(run.stdout) < 4_000
