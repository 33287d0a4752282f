from __future__ import annotations

import json
import random
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from poros.errors import PorosModelError
from poros.weights_index import read_file_header, read_index, short_list, unreadable


def write_shard(path: Path, **tensors: torch.Tensor) -> Path:
    tensors = tensors or {"a": torch.ones(3, 4, dtype=torch.bfloat16), "b": torch.zeros(5)}
    save_file(tensors, path, metadata={"format": "pt"})
    return path


def write_raw(path: Path, header: object, data: bytes = b"") -> Path:
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def failure(path: Path) -> str:
    with pytest.raises(PorosModelError) as caught:
        read_file_header(path)
    assert str(path) in str(caught.value)
    assert caught.value.remediation
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_header_tells_types_shapes_and_ranges(tmp_path: Path) -> None:
    tensors = read_file_header(write_shard(tmp_path / "x.safetensors"))
    assert tensors["a"].header.dtype == "BF16"
    assert tensors["a"].header.shape == (3, 4)
    assert tensors["a"].header.num_bytes == 24
    raw = (tmp_path / "x.safetensors").read_bytes()
    start = tensors["a"].offset_bytes
    assert (
        raw[start : start + 2]
        == torch.ones(1, dtype=torch.bfloat16).view(torch.uint8).numpy().tobytes()
    )


@pytest.mark.parametrize("header_bytes", [640, 640 + 2**16])
def test_a_header_as_long_as_the_first_bytes_of_a_pickle_is_read(
    header_bytes: int, tmp_path: Path
) -> None:
    header = json.dumps({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}})
    path = write_raw(tmp_path / "x.safetensors", header.ljust(header_bytes).encode(), b"\0")
    assert path.read_bytes().startswith(b"\x80\x02")
    assert read_file_header(path)["a"].header.num_bytes == 1


def test_a_file_cut_short_anywhere_is_refused(tmp_path: Path) -> None:
    whole = write_shard(tmp_path / "x.safetensors").read_bytes()
    header_bytes = struct.unpack("<Q", whole[:8])[0] + 8
    path = tmp_path / "cut.safetensors"
    data_cuts = [random.Random(0).randrange(header_bytes, len(whole)) for _ in range(20)]
    for length in [*range(header_bytes), *data_cuts]:
        path.write_bytes(whole[:length])
        message = failure(path)
        assert "cut short" in message or "empty" in message


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "the file is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9\n", "Git LFS pointer"),
        (b"<!DOCTYPE html><html><body>Sign in</body></html>", "HTML page"),
        (b"\n<html lang=en>", "HTML page"),
        (b"PK\x03\x04" + b"\0" * 50, "never unpickles"),
        (b'{"error": "Repository not found"}', "announce a header of"),
        (struct.pack("<Q", 100_000_001) + b"{}", "announce a header of 100000001 bytes"),
        (struct.pack("<Q", 50) + b"{}", "cut short: 10 bytes"),
        (b"abc", "cut short: 3 bytes"),
    ],
)
def test_what_is_no_safetensors_file_is_named(content: bytes, told: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    assert told in failure(path)


@pytest.mark.parametrize(
    ("header", "data", "told"),
    [
        (b"not json", b"", "not valid JSON"),
        (b"\xff\xfe", b"", "not valid JSON"),
        (b"[1]", b"", "not a JSON object"),
        (b"[" * 100_000, b"", "not valid JSON"),
        (b'{"a":{},"a":{}}', b"", "a name occurs twice"),
        ({"a": 3}, b"", "entry is not an object"),
        ({"a": {"dtype": "F99", "shape": [1], "data_offsets": [0, 4]}}, b"1234", "dtype 'F99'"),
        ({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, b"1234", "shape [-1]"),
        ({"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}, b"1234", "shape [True]"),
        ({"a": {"dtype": "F32", "shape": "1", "data_offsets": [0, 4]}}, b"1234", "shape '1'"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}, b"1234", "offsets [4, 0]"),
        ({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}}, b"1234", "offsets [0]"),
        ({"a": {"dtype": "F32", "shape": [1]}}, b"1234", "offsets None"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, b"1234", "expected 8"),
        ({"a": {"dtype": "I32", "shape": [1, 2], "data_offsets": [0, 4]}}, b"1234", "expected 8"),
        ({"a": {"dtype": "U8", "shape": [9], "data_offsets": [0, 9]}}, b"1234", "cut short"),
        ({"a": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}}, b"1234", "2 bytes behind"),
        ({"a": {"dtype": "U8", "shape": [2], "data_offsets": [2, 4]}}, b"1234", "begins at"),
        (
            {
                "a": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
                "b": {"dtype": "U8", "shape": [2], "data_offsets": [2, 4]},
            },
            b"1234",
            "tensor b in",
        ),
    ],
)
def test_a_damaged_header_is_refused(
    header: object, data: bytes, told: str, tmp_path: Path
) -> None:
    assert told in failure(write_raw(tmp_path / "x.safetensors", header, data))


def write_sharded(folder: Path) -> Path:
    write_shard(folder / "one.safetensors", a=torch.ones(2), b=torch.ones(3))
    write_shard(folder / "two.safetensors", c=torch.ones(4))
    write_weight_map(
        folder, {"a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors"}
    )
    return folder


def write_weight_map(folder: Path, weight_map: object) -> None:
    text = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / "model.safetensors.index.json").write_text(text)


def index_failure(folder: Path) -> str:
    with pytest.raises(PorosModelError) as caught:
        read_index(folder)
    assert str(folder) in str(caught.value)
    return str(caught.value)


def test_shards_are_read_through_their_index(tmp_path: Path) -> None:
    found = read_index(write_sharded(tmp_path))
    assert {name: stored.file.name for name, stored in found.items()} == {
        "a": "one.safetensors", "b": "one.safetensors", "c": "two.safetensors",
    }  # fmt: skip


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    (write_sharded(tmp_path) / "two.safetensors").unlink()
    assert "1 of 2 shards are missing: two.safetensors" in index_failure(tmp_path)


@pytest.mark.parametrize(
    ("weight_map", "told"),
    [
        ({"a": "one.safetensors", "c": "two.safetensors"}, "b in a shard but not in the index"),
        (
            dict.fromkeys("abd", "one.safetensors") | {"c": "two.safetensors"},
            "d in the index but in no shard",
        ),
        (
            {"a": "two.safetensors", "b": "one.safetensors", "c": "two.safetensors"},
            "a in another shard than the index says",
        ),
        ({"a": "../one.safetensors"}, "files outside the model's folder"),
        ({"a": "/etc/passwd"}, "files outside the model's folder"),
        ({}, "does not map tensors to files"),
        (["a"], "does not map tensors to files"),
        ({"a": 3}, "does not map tensors to files"),
    ],
)
def test_an_index_that_disagrees_is_refused(weight_map: object, told: str, tmp_path: Path) -> None:
    write_weight_map(write_sharded(tmp_path), weight_map)
    assert told in index_failure(tmp_path)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    write_shard(write_sharded(tmp_path) / "two.safetensors", c=torch.ones(4), a=torch.ones(2))
    assert "a in two shards" in index_failure(tmp_path)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "consolidated.00.pth", "model.ckpt"])
def test_a_folder_of_pickles_is_refused_unopened(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"\x80\x02cposix\nsystem\nX\x05\x00\x00\x00touch\x85R.")
    assert "Poros never unpickles" in index_failure(tmp_path)


def test_a_folder_without_weights_says_what_belongs_there(tmp_path: Path) -> None:
    assert "no model.safetensors" in index_failure(tmp_path)


def test_a_list_of_names_is_complete_and_short() -> None:
    names = [f"model.layers.{i}.mlp.up_proj.weight" for i in (0, 1, 2, 5)]
    assert short_list([*names, "lm_head.weight"]) == (
        "lm_head.weight, model.layers.[0-2,5].mlp.up_proj.weight"
    )
    assert short_list(names[:1]) == names[0]


def test_headers_are_read_without_torch() -> None:
    modules = "poros.weights_index, poros.model_config, poros.arch_registry"
    code = f"import sys, {modules}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_file_that_may_not_be_read_asks_for_the_right_and_not_for_a_download():
    denied = unreadable(Path("model.safetensors"), PermissionError(13, "Permission denied"))
    broken = unreadable(Path("model.safetensors"), OSError(5, "Input/output error"))
    assert "Permission denied" in str(denied)
    assert "chmod u+r model.safetensors" in str(denied)
    assert "download the file again" in str(broken)
