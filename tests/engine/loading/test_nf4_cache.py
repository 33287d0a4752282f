from __future__ import annotations

import gc
import json
import os
from pathlib import Path

import pytest
import torch

from poros import cache_entries, cache_hold, failpoints
from poros.events import Event, Warned
from poros.loading import nf4_cache
from poros.loading.base_model import BaseModel, load_base_model
from poros.loading.byte_source import SafetensorsSource
from poros.loading.seeded_source import SeededSource
from poros.measure.fingerprint import same_bits
from tests.engine.loading.tiny_models import (
    CPU,
    KINDS,
    RUNNABLE,
    VARIANTS,
    all_tensors,
    open_stock,
    state_facts,
    stock_4bit,
    tiny_config,
    write_model,
)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POROS_CACHE", str(tmp_path / "user cache"))


def load(folder: Path, cache: Path, recorded: list[Event] | None = None) -> BaseModel:
    emit = [].append if recorded is None else recorded.append
    return load_base_model(SafetensorsSource(folder), device=CPU, cache=cache, emit=emit)


def warnings_of(recorded: list[Event]) -> list[str]:
    codes = [event.code for event in recorded if isinstance(event, Warned)]
    return [code for code in codes if code != "nf4-cache-size"]


def assert_same_blocks(a: BaseModel, b: BaseModel) -> None:
    assert len(a.blocks) == len(b.blocks) > 0
    for one, other in zip(a.blocks, b.blocks, strict=True):
        assert one.places == other.places
        assert same_bits(one.host, other.host)


def assert_same_model(ours: torch.nn.Module, stock: torch.nn.Module) -> None:
    a, b = all_tensors(ours), all_tensors(stock)  # type: ignore[arg-type]
    assert list(a) == list(b)
    assert [name for name in b if not same_bits(a[name], b[name])] == []


@pytest.mark.parametrize("variant", RUNNABLE)
def test_from_pretrained_opens_an_entry_to_the_bytes_of_the_original(
    variant: str, tmp_path: Path
) -> None:
    folder = write_model(tmp_path / "model", **VARIANTS[variant])
    entry = load(folder, tmp_path / "cache").cache_entry
    assert entry is not None
    opened, stock = open_stock(entry), stock_4bit(folder)
    assert_same_model(opened, stock)
    facts = state_facts(opened)
    assert facts == state_facts(stock)


@pytest.mark.parametrize("variant", KINDS)
def test_a_second_start_maps_the_entry_to_equal_bytes(variant: str, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", **VARIANTS[variant])
    first = load(folder, tmp_path / "cache")
    second = load(folder, tmp_path / "cache")
    assert (first.from_cache, second.from_cache) == (False, True)
    assert first.cache_entry == second.cache_entry
    assert first.digest == second.digest
    assert_same_blocks(first, second)
    for base in (first, second):
        for block in base.blocks:
            block.point_at(block.host)
    assert_same_model(second.model, first.model)
    ids_BT = torch.arange(1, 13).view(1, 12)
    with torch.no_grad():
        assert same_bits(second.model(ids_BT).logits, first.model(ids_BT).logits)


def test_an_entry_given_as_the_model_is_not_quantised_again(tmp_path: Path) -> None:
    first = load(write_model(tmp_path / "model"), tmp_path / "cache")
    assert first.cache_entry is not None
    again = load(first.cache_entry, tmp_path / "other cache")
    assert again.prequantised
    assert not (tmp_path / "other cache").exists()
    assert_same_blocks(first, again)


def test_a_folder_that_stock_exported_in_4_bit_is_not_quantised_again(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", tie_word_embeddings=False)
    stock_4bit(folder).save_pretrained(tmp_path / "exported")
    exported = load(tmp_path / "exported", tmp_path / "cache")
    assert exported.prequantised
    assert_same_blocks(load(folder, tmp_path / "cache"), exported)


def test_a_stored_state_of_another_shape_is_refused_by_name(tmp_path: Path) -> None:
    from bitsandbytes.utils import pack_dict_to_tensor, unpack_tensor_to_dict
    from safetensors.torch import load_file, save_file

    from poros.errors import PorosModelError

    entry = load(write_model(tmp_path / "model"), tmp_path / "cache").cache_entry
    assert entry is not None
    path = sorted(entry.glob("*.safetensors"))[1]
    tensors = load_file(path)
    name = "model.layers.1.self_attn.q_proj.weight"
    key = f"{name}.quant_state.bitsandbytes__nf4"
    state = unpack_tensor_to_dict(tensors[key])
    tensors[key] = pack_dict_to_tensor(state | {"shape": [32, 128]})
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(PorosModelError, match=r"\[32, 128\], expected \[64, 64\]") as caught:
        load(entry, tmp_path / "cache")
    assert name in str(caught.value)


def flip_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize("harm", [flip_bit, cut_short, Path.unlink])
@pytest.mark.parametrize("file", ["model-00002-of-00004.safetensors", "config.json", "manifest"])
def test_a_damaged_entry_is_made_anew_and_never_used(
    harm: object, file: str, tmp_path: Path
) -> None:
    folder = write_model(tmp_path / "model")
    first = load(folder, tmp_path / "cache")
    assert first.cache_entry is not None
    harm(first.cache_entry / (nf4_cache.MANIFEST if file == "manifest" else file))  # type: ignore[operator]
    recorded: list[Event] = []
    second = load(folder, tmp_path / "cache", recorded)
    assert not second.from_cache
    assert warnings_of(recorded) == ["nf4-cache-damaged"]
    assert_same_blocks(first, second)
    assert load(folder, tmp_path / "cache").from_cache


def test_a_change_that_keeps_size_and_time_is_found_when_asked_fully(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    load(folder, tmp_path / "cache")
    entry = load(folder, tmp_path / "cache").cache_entry
    assert entry is not None
    key = json.loads((entry / nf4_cache.MANIFEST).read_text())["key"]
    shard = entry / "model-00001-of-00004.safetensors"
    before = shard.stat()
    with shard.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\xff")
    os.utime(shard, ns=(before.st_atime_ns, before.st_mtime_ns))
    recorded: list[Event] = []
    assert nf4_cache.is_sound(entry, key, emit=recorded.append)
    assert not nf4_cache.is_sound(entry, key, emit=recorded.append, full=True)
    assert warnings_of(recorded) == ["nf4-cache-damaged"]
    assert not entry.exists()


def test_a_start_hashes_nothing_that_was_hashed_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_model(tmp_path / "model")
    for path in folder.iterdir():
        os.utime(path, (1, 1))
    for _ in range(2):
        load(folder, tmp_path / "cache")
    hashed: list[Path] = []
    monkeypatch.setattr("poros.atomic.sha256_of", hashed.append)
    assert load(folder, tmp_path / "cache").from_cache
    assert hashed == []


def test_other_bytes_other_threads_or_another_dtype_are_another_entry(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    one = SafetensorsSource(write_model(tmp_path / "one")).digest()
    other = SafetensorsSource(write_model(tmp_path / "two", vocab_size=130)).digest()
    keys = [
        nf4_cache.cache_key(one, dtype=torch.bfloat16, device=CPU),
        nf4_cache.cache_key(other, dtype=torch.bfloat16, device=CPU),
        nf4_cache.cache_key(one, dtype=torch.float16, device=CPU),
    ]
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        keys.append(nf4_cache.cache_key(one, dtype=torch.bfloat16, device=CPU))
    finally:
        torch.set_num_threads(threads)
    assert len({nf4_cache.entry_for(cache, key) for key in keys}) == 4


def test_the_tokenizer_goes_into_the_entry(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "merges.txt"):
        (folder / name).write_text(name)
    (folder / "training_args.bin").write_bytes(b"pickle")
    entry = load(folder, tmp_path / "cache").cache_entry
    assert entry is not None
    names = {path.name for path in entry.iterdir()}
    assert names >= {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}
    assert "training_args.bin" not in names


def test_an_unwritable_cache_costs_the_cache_and_not_the_load(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    recorded: list[Event] = []
    base = load(write_model(tmp_path / "model"), tmp_path / "file" / "cache", recorded)
    assert base.cache_entry is None
    assert len(base.blocks) == 3
    assert warnings_of(recorded) == ["nf4-cache-unwritten"]


@pytest.mark.parametrize("point", ["atomic.written", "atomic.file_fsync", "atomic.rename"])
def test_a_disk_that_fills_up_costs_the_cache_and_not_the_load(
    point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_model(tmp_path / "model")
    SafetensorsSource(folder).digest()
    monkeypatch.setenv(failpoints.VARIABLE, f"{point}:enospc")
    recorded: list[Event] = []
    base = load(folder, tmp_path / "cache", recorded)
    assert base.cache_entry is None
    assert warnings_of(recorded) == ["nf4-cache-unwritten"]
    assert list((tmp_path / "cache").iterdir()) == []


def test_the_size_is_announced_before_it_is_written(tmp_path: Path) -> None:
    recorded: list[Event] = []
    sizes = {"hidden_size": 256, "intermediate_size": 704, "head_dim": 64}
    folder = write_model(tmp_path / "model", **sizes)
    entry = load(folder, tmp_path / "cache", recorded).cache_entry
    assert entry is not None
    assert any("the NF4 cache takes about" in str(event) for event in recorded)
    source = SafetensorsSource(folder)
    headers = {name: source.header(name) for name in source.names()}
    estimate = nf4_cache.estimate_bytes(headers, "model.layers")
    written = sum(path.stat().st_size for path in entry.glob("*.safetensors"))
    assert 0.9 < estimate / written < 1.1


def test_a_disk_too_small_for_the_entry_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("poros.atomic.free_bytes", lambda folder: 1000)
    recorded: list[Event] = []
    base = load(write_model(tmp_path / "model"), tmp_path / "cache", recorded)
    assert base.cache_entry is None
    assert warnings_of(recorded) == ["nf4-cache-unwritten"]


def test_a_seeded_source_has_an_entry_too(tmp_path: Path) -> None:
    source = SeededSource(tiny_config(), seed=3)
    first = load_base_model(source, device=CPU, cache=tmp_path, emit=lambda event: None)
    second = load_base_model(source, device=CPU, cache=tmp_path, emit=lambda event: None)
    assert second.from_cache
    assert second.cache_entry is not None
    assert_same_blocks(first, second)
    opened = open_stock(second.cache_entry)
    for block in second.blocks:
        block.point_at(block.host)
    assert_same_model(opened, second.model)


def test_entries_are_listed_and_pruned_oldest_first(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    folders = [write_model(tmp_path / name, vocab_size=100 + i) for i, name in enumerate("abc")]
    made = [load(folder, cache).cache_entry for folder in folders]
    for age, entry in enumerate(made):
        assert entry is not None
        os.utime(entry / "poros_verified.json", (1000 - age, 1000 - age))
    gc.collect()  # models go late, and have their entries until then
    listed = cache_entries.entries(cache)
    assert [entry.path for entry in listed] == made[::-1]
    assert [entry.model for entry in listed] == [str(folder) for folder in folders[::-1]]
    keep_bytes = sum(entry.num_bytes for entry in listed[1:])
    assert cache_entries.to_prune(cache, keep_bytes=keep_bytes) == listed[:1]
    cache_entries.remove_entry(listed[0])
    assert cache_entries.entries(cache) == listed[1:]
    for entry in cache_entries.to_prune(cache):
        cache_entries.remove_entry(entry)
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(
    ("setting", "expected"),
    [("auto", "user cache/nf4"), ("off", None), ("/some/where", "/some/where")],
)
def test_the_setting_says_where(setting: str, expected: str | None, tmp_path: Path) -> None:
    found = nf4_cache.location(setting)
    assert found == (None if expected is None else tmp_path / expected)


def test_an_entry_is_in_use_as_long_as_a_model_from_it_lives(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    for _ in ("written", "read"):
        base = load(folder, tmp_path / "cache")
        entry = base.cache_entry
        assert entry is not None
        assert cache_hold.is_in_use(entry)
        del base
        gc.collect()
        assert not cache_hold.is_in_use(entry)
