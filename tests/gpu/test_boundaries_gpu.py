"""Hidden states on the host, with a device: bits, memory saved, and a host that never waits."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

from poros.measure.fingerprint import same_bits
from poros.streaming.attach import Attachment, attach
from poros.streaming.block import Block, FrozenTensor
from poros.streaming.block_manager import BlockManager
from poros.streaming.boundaries import Boundaries

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

NUM_LAYERS, NUM_ROWS, WIDTH = 12, 65536, 256
BOUNDARY_BYTES = NUM_ROWS * WIDTH * 4


class WideLayer(nn.Module):
    """Its hidden states are its largest tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(WIDTH, WIDTH, bias=False).requires_grad_(False)
        self.adapter = nn.Linear(WIDTH, WIDTH, bias=False)
        self.dropout = nn.Dropout(0.1)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + torch.tanh(self.frozen(hidden) + self.adapter(self.dropout(hidden)))


def make(on_host: bool) -> tuple[nn.Sequential, Attachment]:
    torch.manual_seed(1)
    device = torch.device("cuda:0")
    model = nn.Sequential(*(WideLayer() for _ in range(NUM_LAYERS))).to(device)
    blocks = [
        Block.lay_out(k, [FrozenTensor("w", layer.frozen.weight, "data")], device=device)
        for k, layer in enumerate(model)
    ]
    ring = BlockManager(blocks, device=device)
    boundaries = Boundaries(ring, device=device) if on_host else None
    return model, attach(list(model), ring, device=device, boundaries=boundaries)


def step(model: nn.Sequential, num_rows: int = NUM_ROWS) -> list[Tensor]:
    torch.manual_seed(2)
    hidden = torch.linspace(-1, 1, num_rows * WIDTH, device="cuda:0").view(num_rows, WIDTH)
    model(hidden).square().sum().backward()
    gradients = [layer.adapter.weight.grad for layer in model]
    model.zero_grad(set_to_none=True)
    return gradients


def peak_of(model: nn.Sequential) -> int:
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step(model)
    return torch.cuda.max_memory_allocated() - before


def test_bits_and_peak() -> None:
    on_device, on_host = make(on_host=False)[0], make(on_host=True)[0]
    for num_rows in (NUM_ROWS, 4096, NUM_ROWS):
        left, right = step(on_device, num_rows), step(on_host, num_rows)
        assert len(left) == len(right) == NUM_LAYERS
        assert all(map(same_bits, left, right)), num_rows
    saved = peak_of(on_device) - peak_of(on_host)
    # Two are on the device at once; the first one is this test's own; one for what is rounded up.
    assert saved >= (NUM_LAYERS - 4) * BOUNDARY_BYTES, saved / BOUNDARY_BYTES


def test_the_host_never_waits_once_the_buffers_are_there() -> None:
    model, attachment = make(on_host=True)
    first = step(model)
    try:
        with warnings.catch_warnings():  # that it does not see every wait
            warnings.simplefilter("ignore")
            torch.cuda.set_sync_debug_mode("error")
        second = step(model)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(map(same_bits, first, second))
    boundaries = attachment.boundaries
    assert boundaries is not None
    assert all(buffer.registered for buffer in boundaries._free)
    assert boundaries.host_bytes == NUM_LAYERS * BOUNDARY_BYTES
