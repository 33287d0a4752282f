"""NF4 linears: quantised by bitsandbytes' own path, and taken apart into what must travel.

A quantised linear is packed nibbles, absmax (itself quantised), nested absmax and an offset. The
two code tables are the same in every linear: they stay on the device, one copy of each.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

import bitsandbytes as bnb
import torch
from bitsandbytes.functional import QuantState
from bitsandbytes.nn.modules import Linear4bit, Params4bit
from torch import Tensor, nn

from poros.errors import PorosModelError
from poros.loading.checkpoint_match import Expected
from poros.streaming.block import FrozenTensor
from poros.weights_index import TensorHeader

_STATE_KEY = "quant_state.bitsandbytes__nf4"
_HOST = torch.device("cpu")


class CodeTables:
    """The code tables on the device: equal ones are one tensor."""

    def __init__(self, device: torch.device) -> None:
        """Nothing is on the device yet."""
        self._device = device
        self._tables: dict[bytes, Tensor] = {}

    def share(self, table: Tensor) -> Tensor:
        """The device's tensor with these values."""
        key = str(table.dtype).encode() + table.cpu().numpy().tobytes()
        if key not in self._tables:
            self._tables[key] = table.to(self._device, copy=True)
        return self._tables[key]

    def __len__(self) -> int:
        """How many different tables there are."""
        return len(self._tables)


def quantise(linear: Linear4bit, weight: Tensor, tables: CodeTables) -> None:
    """Quantise a linear where its weight lies, as stock does, and bring the result to the host.

    Args:
        linear: With a parameter on the meta device, as the skeleton has it.
        weight: (out, in) in the arithmetic's type, on the training device.
        tables: Where the code tables go.
    """
    settings = dict(linear.weight.__dict__)
    settings.pop("_is_hf_initialized", None)
    made: Any = Params4bit(weight, requires_grad=False, **settings)
    made = made.to(weight.device)
    _hold_on_host(linear, made.data.as_subclass(Tensor), made.quant_state, tables)


def refuse_non_finite(name: str, weight: Tensor, *, where: str) -> None:
    """Refuse a weight with a value that is NaN or infinite: NF4 would spread or even hide it.

    Raises:
        PorosModelError: There is one.
    """
    # The least and the greatest value carry it: one pass, and no copy of the weight.
    if weight.numel() and not bool(torch.stack(torch.aminmax(weight)).isfinite().all()):
        raise PorosModelError(
            f"{name} holds values that are no numbers (NaN or infinity)",
            where=where,
            remediation="download the model again, or take another one: nothing can learn on it",
        )


def adopt(linear: Linear4bit, packed: Tensor, stats: dict[str, Tensor], tables: CodeTables) -> None:
    """Give a linear weights that were quantised before.

    Args:
        linear: The linear.
        packed: (n, 1) uint8 on the host.
        stats: What bitsandbytes stores beside it, by key, on the host.
        tables: Where the code tables go.

    Raises:
        ValueError: The stored state is not one of this linear.
    """
    try:
        state = QuantState.from_dict(dict(stats), device=_HOST)
    except (ValueError, LookupError, AttributeError, AssertionError, TypeError) as error:
        raise ValueError(f"the stored quantisation state is damaged ({error})") from error
    if tuple(state.shape) != (linear.out_features, linear.in_features):
        raise ValueError(
            f"the stored quantisation state is of shape {list(state.shape)}, expected "
            f"{[linear.out_features, linear.in_features]} from the config"
        )
    _hold_on_host(linear, packed, state, tables)


def _hold_on_host(
    linear: Linear4bit, packed: Tensor, state: QuantState, tables: CodeTables
) -> None:
    state.absmax = state.absmax.to(_HOST)
    state.code = tables.share(state.code)
    if state.nested:
        state.offset = state.offset.to(_HOST)
        state.state2.absmax = state.state2.absmax.to(_HOST)
        state.state2.code = tables.share(state.state2.code)
    linear.weight = Params4bit(
        packed.to(_HOST),
        requires_grad=False,
        quant_state=state,
        blocksize=state.blocksize,
        compress_statistics=state.nested,
        quant_type=state.quant_type,
        quant_storage=packed.dtype,
        module=linear,
        bnb_quantized=True,
    )
    linear.quant_state = state


def frozen_tensors(layer: nn.Module, prefix: str = "") -> Iterator[FrozenTensor]:
    """Every tensor of a layer that travels: weights with their statistics, norms, biases, buffers.

    Args:
        layer: A decoder layer, filled.
        prefix: Put before each name, such as ``0.`` for a block's first layer.
    """
    for path, module in layer.named_modules():
        stem = f"{prefix}{path}." if path else prefix
        for leaf, parameter in module.named_parameters(recurse=False):
            yield FrozenTensor(stem + leaf, parameter, "data")
            if isinstance(parameter, Params4bit):
                yield from _frozen_state(stem + leaf, parameter.quant_state)
        for leaf, _ in module.named_buffers(recurse=False):
            yield FrozenTensor(stem + leaf, module, leaf)


def _frozen_state(name: str, state: QuantState) -> Iterator[FrozenTensor]:
    yield FrozenTensor(f"{name}.absmax", state, "absmax")
    if state.nested:
        yield FrozenTensor(f"{name}.nested_absmax", state.state2, "absmax")
        yield FrozenTensor(f"{name}.offset", state, "offset")


def stored_tensors(
    module: nn.Module, prefix: str, *, without: Container[str] = ()
) -> dict[str, Tensor]:
    """A filled module as a stock 4-bit checkpoint stores it, on the host.

    Args:
        module: Filled, but for what is left out.
        prefix: Put before each name.
        without: Names to leave out.
    """
    stored = {}
    for name, tensor in module.state_dict(prefix=prefix).items():
        if name in without:
            continue
        # A stock checkpoint repeats the code table in every linear; here they are one tensor.
        copy = name.endswith(".quant_map")
        stored[name] = tensor.detach().as_subclass(Tensor).to(_HOST, copy=copy)
    return stored


def stat_keys(name: str, headers: dict[str, TensorHeader]) -> list[str]:
    """The keys of the statistics that a checkpoint must hold beside a packed weight."""
    nested = f"{name}.nested_absmax" in headers
    keys = ["absmax", "quant_map", _STATE_KEY]
    return [*keys, "nested_absmax", "nested_quant_map"] if nested else keys


def expected_packed(
    name: str, linear: Linear4bit, headers: dict[str, TensorHeader]
) -> dict[str, Expected]:
    """What a checkpoint must hold for one linear that was quantised before."""
    num_bytes = (linear.out_features * linear.in_features + 1) // 2
    kinds = {
        "absmax": Expected(("U8", "F32"), None),
        "quant_map": Expected(("F32",), (16,)),
        "nested_absmax": Expected(("F32",), None),
        "nested_quant_map": Expected(("F32",), (256,)),
        _STATE_KEY: Expected(("U8",), None),
    }
    stats = {f"{name}.{key}": kinds[key] for key in stat_keys(name, headers)}
    return {name: Expected(("U8",), (num_bytes, 1))} | stats


def check_bitsandbytes(device: torch.device) -> None:
    """Refuse a bitsandbytes that can't quantise on the device.

    Raises:
        PorosModelError: With the command that mends it.
    """
    library = getattr(bnb.cextension, "lib", None)
    if type(library).__name__ == "ErrorHandlerMockBNBNativeLibrary":
        raise PorosModelError(
            f"bitsandbytes {bnb.__version__} has no library for {device.type} here",
            where="bitsandbytes",
            remediation="run `python -m bitsandbytes` to see why, and install a matching build",
        )
