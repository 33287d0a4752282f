"""Stock's own load, on the ring, with the bytes that ours has."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import pytest
import torch
from bitsandbytes.nn import Linear4bit
from safetensors.torch import load_file, save_file

from poros.errors import PorosConfigError, PorosModelError
from poros.loading.base_model import BaseModel, load_base_model
from poros.loading.byte_source import ByteSource, SafetensorsSource
from poros.loading.seeded_source import SeededSource
from poros.measure.fingerprint import same_bits
from tests.engine.loading.tiny_models import (
    CPU,
    KINDS,
    VARIANTS,
    all_tensors,
    tiny_config,
    write_model,
)


def load(source: ByteSource, strategy: str, cache: Path | None = None) -> BaseModel:
    return load_base_model(
        source, device=CPU, cache=cache, emit=lambda event: None, load_strategy=strategy
    )


def bound(base: BaseModel) -> dict[str, torch.Tensor]:
    for block in base.blocks:
        block.point_at(block.host)
    return all_tensors(base.model)


@pytest.mark.parametrize("variant", KINDS)
def test_stocks_load_has_the_bytes_of_the_one_layer_by_layer(variant: str, tmp_path: Path) -> None:
    source = SafetensorsSource(write_model(tmp_path, **VARIANTS[variant]))
    ours, stock = load(source, "block_streamed"), load(source, "gpu")
    assert [block.places for block in stock.blocks] == [block.places for block in ours.blocks]
    assert (stock.digest, stock.prequantised) == (ours.digest, ours.prequantised)
    a, b = bound(ours), bound(stock)
    assert list(a) == list(b)
    assert [name for name in a if not same_bits(a[name], b[name])] == []


def test_stocks_linears_are_gone_when_their_tensors_are_there(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    gc.collect()
    before = {id(linear) for linear in linears_alive()}
    gc.disable()  # a collection that comes by chance is not waited for
    try:
        base = load(SafetensorsSource(folder), "gpu")
        left = [linear for linear in linears_alive() if id(linear) not in before]
    finally:
        gc.enable()
    own = {id(module) for module in base.model.modules()}
    assert [linear for linear in left if id(linear) not in own] == []


def linears_alive() -> list[Linear4bit]:
    return [found for found in gc.get_objects() if type(found) is Linear4bit]


def test_the_cache_is_neither_read_nor_written(tmp_path: Path) -> None:
    source = SafetensorsSource(write_model(tmp_path / "model"))
    assert load(source, "gpu", tmp_path / "nf4").cache_entry is None
    assert not (tmp_path / "nf4").exists()


def test_a_missing_tensor_is_refused_before_stock_makes_it_up(tmp_path: Path) -> None:
    path = write_model(tmp_path) / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(PorosModelError, match=r"layers\.1\.mlp\.up_proj"):
        load(SafetensorsSource(tmp_path), "gpu")


def test_code_beside_the_model_does_not_run(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    (folder / "modeling_evil.py").write_text(f"open({str(tmp_path / 'canary')!r}, 'w')\n")
    config = json.loads((folder / "config.json").read_text())
    asked = {"auto_map": {"AutoModelForCausalLM": "modeling_evil.Evil"}}
    (folder / "config.json").write_text(json.dumps(config | asked))
    load_base_model(
        SafetensorsSource(folder), device=CPU, emit=lambda event: None, trust_remote_code=True,
        load_strategy="gpu",
    )  # fmt: skip
    assert not (tmp_path / "canary").exists()


def test_a_made_up_model_has_no_folder_for_stock(tmp_path: Path) -> None:
    with pytest.raises(PorosConfigError, match="nf4_load_strategy gpu needs a folder"):
        load(SeededSource(tiny_config(), seed=1), "gpu")
