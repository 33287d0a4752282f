"""Where the blocks of a load lie: what was asked for, what there is room for, the same bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from poros import host_room
from poros.errors import PorosConfigError, PorosModelError, PorosStorageError
from poros.events import Warned
from poros.loading import base_model, nf4_cache, tier_choice
from poros.loading.base_model import BaseModel, load_base_model
from poros.loading.byte_source import SafetensorsSource
from poros.loading.seeded_source import SeededSource
from poros.measure.fingerprint import same_bits
from tests.engine.loading.tiny_models import CPU, KINDS, VARIANTS, tiny_config, write_model


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POROS_CACHE", str(tmp_path / "user cache"))


def load(source, cache=None, warned=None, **settings) -> BaseModel:
    source = SafetensorsSource(source) if isinstance(source, Path) else source
    emit = [].append if warned is None else warned.append
    return load_base_model(source, device=CPU, cache=cache, emit=emit, **settings)


def assert_same_blocks(a: BaseModel, b: BaseModel) -> None:
    assert len(a.blocks) == len(b.blocks) > 0
    for one, other in zip(a.blocks, b.blocks, strict=True):
        assert one.places == other.places
        assert same_bits(one.host, other.host)


@pytest.mark.parametrize("variant", KINDS)
def test_blocks_on_disk_are_those_in_memory(variant, tmp_path):
    folder, cache = write_model(tmp_path / "model", **VARIANTS[variant]), tmp_path / "cache"
    first = load(folder, cache, host_tier="disk")
    again = load(folder, cache, host_tier="disk")
    memory = load(folder, cache)
    assert [b.host_tier for b in (first, again, memory)] == ["disk", "disk", "memory"]
    assert [b.from_cache for b in (first, again, memory)] == [False, True, True]
    assert not first.prequantised
    assert_same_blocks(first, memory)
    assert_same_blocks(again, memory)
    for base in (first, again):
        assert all(block.host_bytes < block.num_bytes / 50 for block in base.blocks)


def test_layers_of_a_block_lie_in_several_files(tmp_path):
    folder, cache = write_model(tmp_path / "model"), tmp_path / "cache"
    memory = load(folder, cache, layers_per_block=2)
    assert_same_blocks(load(folder, cache, layers_per_block=2, host_tier="disk"), memory)


def test_a_dense_base_is_read_from_its_own_folder(tmp_path):
    folder = write_model(tmp_path / "model")
    disk = load(folder, quantization="bf16", host_tier="disk")
    assert {block.host_bytes for block in disk.blocks} == {0}
    assert_same_blocks(disk, load(folder, quantization="bf16"))


@pytest.mark.parametrize(
    "settings",
    [{}, {"quantization": "fp16"}, {"load_strategy": "gpu", "cache": "cache"}],
    ids=["no cache", "files of another type", "quantised by stock"],
)
def test_disk_is_refused_where_the_blocks_lie_in_no_file(settings, tmp_path):
    settings = {k: tmp_path / v if k == "cache" else v for k, v in settings.items()}
    with pytest.raises(PorosConfigError, match="lie in no file"):
        load(write_model(tmp_path / "model"), **settings, host_tier="disk")


def test_a_made_up_model_is_on_disk_by_its_cache(tmp_path):
    source = SeededSource(tiny_config(), 3)
    with pytest.raises(PorosConfigError, match="no file"):
        load(source, host_tier="disk")
    disk = load(source, tmp_path / "cache", host_tier="disk")
    assert_same_blocks(disk, load(source))


def test_blocks_that_can_t_be_written_are_an_error_of_storage(tmp_path, monkeypatch):
    folder = write_model(tmp_path / "model")
    monkeypatch.setattr(nf4_cache.atomic, "free_bytes", lambda _: 0)
    with pytest.raises(PorosStorageError, match="could not be written"):
        load(folder, tmp_path / "cache", host_tier="disk")


def test_while_the_entry_is_written_no_layer_is_kept(tmp_path, monkeypatch):
    kept = []
    drop = base_model.ModelFiller._progress

    def look(filler, *progress):
        layers = filler.skeleton.layers
        held = [p.numel() for layer in layers for p in layer.parameters() if not p.is_meta]
        kept.append(sum(held))
        drop(filler, *progress)

    monkeypatch.setattr(base_model.ModelFiller, "_progress", look)
    load(write_model(tmp_path / "model"), tmp_path / "cache", host_tier="disk")
    assert kept
    assert set(kept) == {0}


@pytest.mark.parametrize(("free", "tier"), [(1 << 40, "memory"), (10_000, "disk")])
def test_by_itself_a_run_takes_what_there_is_room_for(free, tier, tmp_path, monkeypatch):
    monkeypatch.setattr(host_room, "available_bytes", lambda: free)
    monkeypatch.setattr(tier_choice, "available_bytes", lambda: free)
    warned: list = []
    base = load(write_model(tmp_path / "model"), tmp_path / "cache", warned)
    assert base.host_tier == tier
    told = [e.message for e in warned if isinstance(e, Warned) and e.code == "host-tier"]
    assert len(told) == (tier == "disk")
    assert all("too much for the 10.0 kB of memory" in message for message in told)
    # Nothing to read from: then in memory, come what may.
    assert load(write_model(tmp_path / "model")).host_tier == "memory"


def test_an_entry_that_was_just_written_is_not_hashed_again(tmp_path, monkeypatch):
    folder = write_model(tmp_path / "model")
    load(folder, tmp_path / "cache")
    hashed: list[Path] = []
    monkeypatch.setattr("poros.atomic.sha256_of", lambda path: hashed.append(path) or "?")
    monkeypatch.setattr(SafetensorsSource, "digest", lambda self: digest)
    digest = json.loads(next((tmp_path / "cache").glob("nf4-*/poros_cache.json")).read_text())[
        "key"
    ]["source"]
    assert load(folder, tmp_path / "cache").from_cache
    assert hashed == []


def test_a_file_that_becomes_shorter_during_a_load_is_an_error(tmp_path, monkeypatch):
    folder = write_model(tmp_path / "model")
    source = SafetensorsSource(folder)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-5000])
    with pytest.raises(PorosModelError, match="became shorter") as caught:
        load(source, quantization="bf16")
    assert str(path) in str(caught.value)


def test_a_refusal_to_register_is_told(tmp_path):
    base, told = load(write_model(tmp_path / "model")), []
    cuda = torch.device("cuda", 0)
    assert tier_choice.tier_taken("registered", base.blocks, cuda, emit=told.append) == "pageable"
    [event] = told
    assert event.code == "host-tier"
    assert "refuses to pin" in event.message
    assert tier_choice.tier_taken("pageable", base.blocks, cuda, emit=told.append) == "pageable"
    assert len(told) == 1
