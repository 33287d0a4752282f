from __future__ import annotations

import pytest

from poros.arch_registry import find_architecture
from poros.errors import PorosModelError
from poros.loading.checkpoint_match import Expected, match_checkpoint
from poros.weights_index import TensorHeader

LLAMA = find_architecture("llama")
EXPECTED = {
    "model.embed_tokens.weight": Expected(("BF16",), (8, 4)),
    "model.layers.0.a.weight": Expected(("BF16",), (4, 4)),
    "model.layers.1.a.weight": Expected(("BF16",), (4, 4)),
}
HEADERS = {name: TensorHeader("BF16", e.shape or (), 32) for name, e in EXPECTED.items()}
TIED = {"lm_head.weight": "model.embed_tokens.weight"}


def match(headers: dict[str, TensorHeader], tied: dict[str, str] | None = None) -> object:
    return match_checkpoint(headers, EXPECTED, tied=tied or {}, architecture=LLAMA, where="here")


def failure(headers: dict[str, TensorHeader], tied: dict[str, str] | None = None) -> str:
    with pytest.raises(PorosModelError) as caught:
        match(headers, tied)
    return str(caught.value)


def test_each_tensor_is_paired_with_its_own_name() -> None:
    found = match_checkpoint(HEADERS, EXPECTED, tied=TIED, architecture=LLAMA, where="here")
    assert found.stored_name == {name: name for name in EXPECTED}
    assert found.tied_copies == {}
    assert found.left_out_bytes == {}


def test_a_tied_tensor_is_found_under_either_name() -> None:
    headers = dict(HEADERS)
    headers["lm_head.weight"] = headers.pop("model.embed_tokens.weight")
    found = match_checkpoint(headers, EXPECTED, tied=TIED, architecture=LLAMA, where="here")
    assert found.stored_name["model.embed_tokens.weight"] == "lm_head.weight"


def test_both_names_of_a_tied_tensor_are_to_be_compared() -> None:
    headers = HEADERS | {"lm_head.weight": HEADERS["model.embed_tokens.weight"]}
    found = match_checkpoint(headers, EXPECTED, tied=TIED, architecture=LLAMA, where="here")
    assert found.tied_copies == {"lm_head.weight": "model.embed_tokens.weight"}


def test_all_missing_and_all_unknown_names_are_told_at_once() -> None:
    headers = {"model.embed_tokens.weight": HEADERS["model.embed_tokens.weight"]}
    headers |= {f"model.layers.{i}.b.weight": TensorHeader("BF16", (1,), 2) for i in range(3)}
    message = failure(headers)
    assert "3 layers stored, 2 expected" in message
    assert "missing: model.layers.[0-1].a.weight" in message
    assert "no place in a llama model: model.layers.[0-2].b.weight" in message


def test_a_tensor_on_the_familys_list_is_left_out_and_its_bytes_counted() -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    headers = HEADERS | {name: TensorHeader("F32", (8,), 32)}
    found = match_checkpoint(headers, EXPECTED, tied={}, architecture=LLAMA, where="here")
    assert found.left_out_bytes == {name: 32}


@pytest.mark.parametrize(
    ("header", "told"),
    [
        (TensorHeader("BF16", (4, 5), 40), "is [4, 5], expected [4, 4] from the config"),
        (TensorHeader("I32", (4, 4), 64), "is I32, expected BF16"),
    ],
)
def test_a_header_that_does_not_fit_is_told_with_both_sides(
    header: TensorHeader, told: str
) -> None:
    assert told in failure(HEADERS | {"model.layers.1.a.weight": header})


def test_a_tied_copy_must_fit_as_well() -> None:
    headers = HEADERS | {"lm_head.weight": TensorHeader("BF16", (9, 4), 72)}
    assert "lm_head.weight is [9, 4]" in failure(headers, TIED)
