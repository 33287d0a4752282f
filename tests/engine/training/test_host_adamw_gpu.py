"""State on the host, as only a CUDA device shows it: other kernels, and copies under way."""

from __future__ import annotations

import gc

import pytest
import torch

from poros.measure.fingerprint import same_bits
from poros.streaming.block import Block
from poros.streaming.return_lane import CudaReturnLane, make_return_lane
from poros.streaming.state_ring import StateRing
from poros.training.determinism import enforce_determinism, prepare_cuda
from tests.engine.loading.tiny_models import write_model
from tests.engine.training.host_runs import ADAPTERS, MOMENTS, STOCK, assert_equal, observed
from tests.engine.training.stepped_groups import stepped

pytestmark = pytest.mark.gpu

prepare_cuda()  # before CUDA starts

CUDA = torch.device("cuda", 0)
SIZES = [(16, 3584), (3584, 16), (16, 18944), (5,), (512, 16), (33, 7), (1,)]
LARGE = 8 * 2**20


@pytest.fixture(autouse=True)
def _deterministic():
    enforce_determinism(CUDA)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tensors_bits_do_not_depend_on_who_else_is_stepped(dtype):
    together = stepped([SIZES], dtype, CUDA)
    alone = stepped([[size] for size in SIZES], dtype, CUDA)
    parts = stepped([SIZES[:3], SIZES[3:]], dtype, CUDA)
    assert all(map(same_bits, together, alone))
    assert all(map(same_bits, together, parts))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_tensors_bits_do_not_depend_on_where_in_a_buffer_it_lies(dtype):
    """Views that start on 256 bytes of a slot against allocations of their own."""
    apart = stepped([SIZES], dtype, CUDA)
    assert all(map(same_bits, apart, stepped([SIZES], dtype, CUDA, in_one_buffer=True)))


@pytest.mark.parametrize("plan", [MOMENTS, ADAPTERS], ids=["moments", "adapters"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"layers_per_block": 2, "dtype": torch.bfloat16},
        {"autocast": True},
    ],
    ids=["plain", "blocks of 2, bf16", "autocast"],
)
def test_five_steps_have_the_bits_of_stock(tmp_path, plan, settings):
    folder = write_model(tmp_path / "model", num_hidden_layers=6)
    stock = observed(folder, STOCK, num_steps=5, device=CUDA, **settings)
    assert_equal(stock, observed(folder, plan, num_steps=5, device=CUDA, **settings))


def test_bytes_come_back_as_the_last_kernel_left_them():
    """Long copies and kernels of unequal length; each round adds one in every block's slot."""
    lane = make_return_lane(CUDA)
    assert isinstance(lane, CudaReturnLane)
    blocks = [
        Block.zeros(k, [("tensor", torch.empty(LARGE, dtype=torch.float32))], device=CUDA)
        for k in range(5)
    ]
    assert all(block.registered for block in blocks)
    ring = StateRing(blocks, device=CUDA, lane=lane)
    busy = torch.randn(2048, 2048, device=CUDA)
    for round_ in range(6):
        for index in range(5) if round_ % 2 else reversed(range(5)):
            ring.bind(index, direction=1 if round_ % 2 else -1)
            for _ in range(index):
                busy = torch.tanh(busy @ busy)
            blocks[index].tensors[0].add_(index + 1)
            ring.store()
    ring.forget()
    lane.settle()
    for index, block in enumerate(blocks):
        assert bool((block.home[0] == 6 * (index + 1)).all()), index


def test_memory_that_leaves_the_device_leaves_it(tmp_path):
    folder = write_model(
        tmp_path / "model", num_hidden_layers=12, hidden_size=256, intermediate_size=1024
    )
    peaks = []
    for plan in (STOCK, MOMENTS, ADAPTERS):
        gc.collect()  # models of tests before this one
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated(CUDA)
        observed(folder, plan, num_steps=1, device=CUDA)
        torch.cuda.reset_peak_memory_stats(CUDA)
        observed(folder, plan, num_steps=2, device=CUDA)
        peaks.append(torch.cuda.max_memory_allocated(CUDA) - before)
    assert peaks[0] > peaks[1] > peaks[2]
