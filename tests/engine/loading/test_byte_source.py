from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from poros.errors import PorosModelError
from poros.loading.byte_source import TORCH_DTYPES, SafetensorsSource
from poros.loading.file_hashes import file_hashes
from poros.measure.fingerprint import same_bits
from tests.engine.loading.tiny_models import CPU, write_model


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POROS_CACHE", str(tmp_path / "user cache"))


def folder_with(folder: Path, **tensors: torch.Tensor) -> Path:
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    return folder


def test_every_type_is_read_bit_by_bit(tmp_path: Path) -> None:
    tensors = {
        str(dtype): torch.randint(0, 2, (3, 5)).to(dtype) for dtype in set(TORCH_DTYPES.values())
    }
    tensors |= {
        "empty": torch.empty(0, 4),
        "scalar": torch.tensor(2.5),
        "odd": torch.ones(7).bool(),
    }
    source = SafetensorsSource(folder_with(tmp_path / "m", **tensors))
    assert sorted(source.names()) == sorted(tensors)
    for name, tensor in tensors.items():
        assert same_bits(source.read(name, CPU), tensor)
        assert same_bits(source.read_to_host(name, CPU), tensor)


def test_a_tensor_at_an_odd_offset_is_read_too(tmp_path: Path) -> None:
    header = {
        "a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "b": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]},
    }
    text = json.dumps(header).encode()
    values = torch.tensor([1.5, -2.0])
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(
        len(text).to_bytes(8, "little") + text + b"x" + values.numpy().tobytes()
    )
    assert same_bits(SafetensorsSource(tmp_path).read("b", CPU), values)


def test_a_type_is_converted_on_the_way(tmp_path: Path) -> None:
    value = torch.tensor([1.00390625])
    source = SafetensorsSource(folder_with(tmp_path / "m", a=value))
    assert same_bits(source.read("a", CPU, torch.bfloat16), value.to(torch.bfloat16))


def test_a_file_that_shrinks_while_it_is_read_is_an_error_and_no_crash(tmp_path: Path) -> None:
    source = SafetensorsSource(folder_with(tmp_path / "m", a=torch.ones(1000)))
    path = tmp_path / "m" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(PorosModelError, match="became shorter") as caught:
        source.read("a", CPU)
    assert "tensor a in" in str(caught.value)


def test_the_digest_is_of_bytes_and_config_and_not_of_the_place(tmp_path: Path) -> None:
    one = write_model(tmp_path / "one")
    two = write_model(tmp_path / "two")
    first = SafetensorsSource(one).digest()
    assert SafetensorsSource(two).digest() == first
    path = two / "model.safetensors"
    tensors = load_file(path)
    tensors["model.norm.weight"][0] += 1
    save_file(tensors, path, metadata={"format": "pt"})
    assert SafetensorsSource(two).digest() != first
    config = json.loads((one / "config.json").read_text())
    (one / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 1e-4}))
    assert SafetensorsSource(one).digest() != first


def test_a_bit_flip_anywhere_in_a_shard_changes_its_hash(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    content = bytes(range(256)) * 8
    path.write_bytes(content)
    hashes = {file_hashes([path])[path]}
    for place in range(0, len(content), 101):
        flipped = bytearray(content)
        flipped[place] ^= 1
        path.write_bytes(flipped)
        hashes.add(file_hashes([path])[path])
    assert len(hashes) == 1 + len(range(0, len(content), 101))


def test_a_hub_blob_is_known_by_its_name(tmp_path: Path) -> None:
    blob = tmp_path / "blobs" / ("ab" * 32)
    blob.parent.mkdir()
    blob.write_bytes(b"anything")
    link = tmp_path / "model.safetensors"
    link.symlink_to(blob)
    assert file_hashes([link])[link] == "ab" * 32
    assert file_hashes([link], trust_names=False)[link] != "ab" * 32


def test_a_damaged_memo_of_hashes_is_done_without(tmp_path: Path) -> None:
    memo = tmp_path / "user cache" / "file_hashes.json"
    memo.parent.mkdir()
    memo.write_text("[")
    path = tmp_path / "shard"
    path.write_bytes(b"x")
    assert len(file_hashes([path])[path]) == 64
