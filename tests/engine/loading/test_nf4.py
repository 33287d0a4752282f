from __future__ import annotations

import bitsandbytes as bnb
import pytest
import torch

from poros.loading import nf4
from poros.measure.fingerprint import same_bits
from tests.engine.loading.tiny_models import CPU


def made_linear() -> tuple[bnb.nn.Linear4bit, torch.Tensor, nf4.CodeTables]:
    torch.manual_seed(0)
    weight = torch.randn(48, 64, dtype=torch.bfloat16)
    with torch.device("meta"):
        linear = bnb.nn.Linear4bit(64, 48, True, torch.bfloat16, True, "nf4")
    linear.bias = torch.nn.Parameter(torch.randn(48, dtype=torch.bfloat16), requires_grad=False)
    tables = nf4.CodeTables(CPU)
    nf4.quantise(linear, weight.clone(), tables)
    return linear, weight, tables


def test_quantising_gives_the_bytes_of_bitsandbytes() -> None:
    linear, weight, _ = made_linear()
    packed, state = bnb.functional.quantize_4bit(
        weight, blocksize=64, compress_statistics=True, quant_type="nf4"
    )
    ours = linear.weight.quant_state
    assert same_bits(linear.weight.data.as_subclass(torch.Tensor), packed)
    assert same_bits(ours.absmax, state.absmax)
    assert same_bits(ours.offset, state.offset)
    assert same_bits(ours.state2.absmax, state.state2.absmax)
    assert same_bits(ours.code, state.code)
    assert same_bits(ours.state2.code, state.state2.code)


def test_what_is_stored_can_be_adopted_again_bit_by_bit() -> None:
    linear, _, tables = made_linear()
    stored = nf4.stored_tensors(linear, "x.")
    assert sorted(stored) == sorted(
        ["x.bias", "x.weight", *(f"x.weight.{key}" for key in (
            "absmax", "quant_map", "nested_absmax", "nested_quant_map",
            "quant_state.bitsandbytes__nf4",
        ))]
    )  # fmt: skip
    other = bnb.nn.Linear4bit(64, 48, False, torch.bfloat16, True, "nf4", device="meta")
    stats = {n.removeprefix("x.weight."): t for n, t in stored.items() if n.startswith("x.weight.")}
    nf4.adopt(other, stored["x.weight"], stats, tables)
    again = nf4.stored_tensors(other, "x.")
    assert all(same_bits(again[name], stored[name]) for name in stored if name != "x.bias")
    assert len(tables) == 2


@pytest.mark.parametrize("missing", ["absmax", "quant_state.bitsandbytes__nf4", "nested_absmax"])
def test_a_damaged_state_is_a_value_error(missing: str) -> None:
    linear, _, tables = made_linear()
    stored = nf4.stored_tensors(linear, "")
    stats = {n.removeprefix("weight."): t for n, t in stored.items() if n.startswith("weight.")}
    del stats[missing]
    if missing == "nested_absmax":
        stats["quant_state.bitsandbytes__nf4"] = torch.full((9,), 255, dtype=torch.uint8)
    with pytest.raises(ValueError, match="damaged"):
        nf4.adopt(linear, stored["weight"], stats, tables)


def test_all_four_tensors_of_a_linear_travel_and_its_bias() -> None:
    linear, _, _ = made_linear()
    frozen = {entry.name: entry.value for entry in nf4.frozen_tensors(linear, "0.")}
    assert list(frozen) == [
        "0.weight", "0.weight.absmax", "0.weight.nested_absmax", "0.weight.offset", "0.bias",
    ]  # fmt: skip
    assert frozen["0.weight"].shape == (48 * 64 // 2, 1)
    assert frozen["0.weight.absmax"].dtype == torch.uint8
    assert frozen["0.weight.offset"].shape == ()


def test_equal_tables_are_one_and_others_are_not() -> None:
    tables = nf4.CodeTables(CPU)
    a = tables.share(torch.tensor([1.0, 2.0]))
    assert tables.share(torch.tensor([1.0, 2.0])) is a
    assert tables.share(torch.tensor([1.0, 3.0])) is not a
    assert len(tables) == 2
