"""What `poros check` reads out of headers is what a load then takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from poros.check import check_model
from poros.loading.base_model import load_base_model
from poros.loading.byte_source import SafetensorsSource
from poros.streaming.block import ALIGNMENT_BYTES
from tests.engine.loading.tiny_models import CPU, RUNNABLE, VARIANTS, write_model


@pytest.mark.parametrize("variant", RUNNABLE)
def test_the_sizes_of_check_are_those_of_the_load(variant: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path, **VARIANTS[variant])
    report = check_model(str(folder))
    assert report.refusals == []
    assert report.sizes is not None
    base = load_base_model(SafetensorsSource(folder), device=CPU, emit=lambda event: None)
    # A block's last tensor is not padded.
    largest_bytes = max(block.num_bytes for block in base.blocks)
    assert 0 <= report.sizes.nf4_layer_bytes - largest_bytes < ALIGNMENT_BYTES
    assert report.sizes.num_layers == len(base.blocks)
    num_ends = len(list(base.model.named_parameters()))
    # Rotary tables are in no file.
    assert abs(report.sizes.ends_bytes - base.resident_bytes) < 1024 + ALIGNMENT_BYTES * num_ends
    assert report.sizes.tied == bool(base.model.config.tie_word_embeddings)
