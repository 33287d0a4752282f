"""What only a CUDA device can show: stock's bytes there, and the memory that loading takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from poros.errors import PorosModelError
from poros.loading.base_model import load_base_model, place_ends
from poros.loading.byte_source import SafetensorsSource
from poros.loading.seeded_source import SeededSource
from poros.measure.fingerprint import same_bits
from tests.engine.loading.test_seeded_source import QWEN_32B
from tests.engine.loading.tiny_models import (
    RUNNABLE,
    VARIANTS,
    all_tensors,
    stock_4bit,
    write_model,
)

pytestmark = pytest.mark.gpu

MEGABYTE = 10**6


@pytest.mark.parametrize("variant", RUNNABLE)
@pytest.mark.parametrize("start", ["first", "second"])
def test_the_device_quantises_to_the_bytes_of_from_pretrained(
    variant: str, start: str, tmp_path: Path
) -> None:
    device = torch.device("cuda", 0)
    folder = write_model(tmp_path / "model", **VARIANTS[variant])
    starts = 1 if start == "first" else 2
    for _ in range(starts):
        base = load_base_model(
            SafetensorsSource(folder), device=device, cache=tmp_path / "c", emit=lambda event: None
        )
    assert base.from_cache == (start == "second")
    place_ends(base, device)
    for block in base.blocks:
        block.point_at(block.host.to(device))
    ours, stock = all_tensors(base.model), all_tensors(stock_4bit(folder, device=device))
    assert list(ours) == list(stock)
    assert [name for name in stock if not same_bits(ours[name], stock[name])] == []
    assert {tensor.device for tensor in ours.values()} == {device}


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_weight_that_is_no_number_is_refused_by_name(bad: float, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    name = "model.layers.1.mlp.down_proj.weight"
    weights = load_file(folder / "model.safetensors")
    weights[name].view(-1)[7] = bad
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(PorosModelError, match=f"{re.escape(name)} holds values that are no num"):
        load_base_model(
            SafetensorsSource(folder),
            device=torch.device("cuda", 0),
            cache=tmp_path / "c",
            emit=lambda event: None,
        )


def test_loading_takes_one_linear_and_its_nf4_on_the_device() -> None:
    device = torch.device("cuda", 0)
    source = SeededSource(QWEN_32B | {"num_hidden_layers": 2}, seed=0)
    base = load_base_model(source, device=device, layers_per_block=2, emit=lambda event: None)
    largest_elements = 5120 * 27648
    limit_bytes = largest_elements * 2 + largest_elements * 0.52 + 256 * MEGABYTE
    assert largest_elements * 2 < base.load_device_peak_bytes < limit_bytes
    assert torch.cuda.memory_allocated(device) < 16 * MEGABYTE
    assert not base.model.lm_head.weight.is_cuda
