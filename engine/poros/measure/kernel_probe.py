"""What `poros doctor` tries in a child process: real kernels, pinned memory, the link.

Each probe is told at its start and at its end, a JSON line each, so that the parent knows which
one crashed or hung.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

_PINNED_BYTES = 256 * 2**20
_WIDTH = 256
_PR_SET_PDEATHSIG = 1

Found = dict[str, Any]


def main(index: int, wanted: Sequence[str] = ()) -> None:
    """Try things on a device.

    Args:
        index: Of the card as CUDA counts them; a negative one is the CPU.
        wanted: Names of the probes beside torch's own; empty: all.
    """
    _end_with_parent()
    # bitsandbytes fetches and runs code of the Hub at its import where `kernels` is installed.
    sys.modules.setdefault("kernels", None)  # type: ignore[arg-type]  # None: can't be imported
    found = _tell("torch", _look_at_torch)
    if found is None:
        return
    device = f"cuda:{index}" if index >= 0 and found["cuda_available"] else "cpu"
    probes: dict[str, Callable[[], Found]] = {
        "bitsandbytes": _look_at_bitsandbytes,
        "bf16": lambda: _multiply_bf16(device),
        "nf4": lambda: _multiply_nf4(device),
    }
    if device != "cpu":
        probes["pinned"] = _pin
        probes["link"] = lambda: _copy(device)
        probes["arithmetic"] = lambda: _multiply_much(device)
    for name, probe in probes.items():
        if not wanted or name in wanted:
            _tell(name, probe)


def _end_with_parent() -> None:
    """A parent that is killed can't end us, who are in a session of our own and may hang.

    Linux means the thread that started us: it must wait for our end, as `poros doctor` does.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))


def _tell(name: str, probe: Callable[[], Found]) -> Found | None:
    _say({"probe": name, "state": "started"})
    try:
        found = probe()
    except Exception as error:  # noqa: BLE001 - whatever a broken stack throws is the answer
        _say({"probe": name, "state": "failed", "error": _line(error)})
        return None
    _say({"probe": name, "state": "done", **found})
    return found


def _say(record: Found) -> None:
    sys.stdout.write(json.dumps(record) + "\n")
    sys.stdout.flush()


def _line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:300]}"


def _look_at_torch() -> Found:
    import torch

    return {
        "version": torch.__version__,
        "cuda_build": torch.version.cuda or "",
        "cuda_available": torch.cuda.is_available(),
        "archs": torch.cuda.get_arch_list(),
    }


def _look_at_bitsandbytes() -> Found:
    return {"version": str(importlib.import_module("bitsandbytes").__version__)}


def _multiply_bf16(device: str) -> Found:
    """A product of whole numbers, which bfloat16 holds exactly."""
    import torch

    x_TD = torch.ones(_WIDTH, _WIDTH, dtype=torch.bfloat16, device=device)
    product_TD = x_TD @ x_TD
    if not bool((product_TD == _WIDTH).all()):
        raise ValueError("the product is wrong")
    return {"device": device}


def _multiply_nf4(device: str) -> Found:
    """Quantise ones, which NF4 holds exactly, and multiply by them."""
    import torch
    from bitsandbytes import functional

    w_FD = torch.ones(_WIDTH, _WIDTH, dtype=torch.bfloat16, device=device)
    packed, state = functional.quantize_4bit(w_FD, quant_type="nf4")
    back_FD = functional.dequantize_4bit(packed, state)
    product_TF = torch.ones(_WIDTH, _WIDTH, dtype=torch.bfloat16, device=device) @ back_FD.t()
    if not bool((product_TF == _WIDTH).all()):
        raise ValueError("the product is wrong")
    return {"device": device}


def _pin() -> Found:
    import torch

    pinned = torch.empty(_PINNED_BYTES, dtype=torch.uint8, pin_memory=True)
    return {"num_bytes": pinned.numel()}


def _copy(device: str) -> Found:
    import torch

    from poros.training.rates import link_rate

    return {"bytes_per_s": link_rate(torch.device(device))}


def _multiply_much(device: str) -> Found:
    """Products of the widths of a 7B model, 2,048 tokens at a time."""
    import torch

    from poros.training.rates import multiply_rate

    rate = multiply_rate(torch.device(device), 2048, 4096, 14336)
    return {"operations_per_s": rate}


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else -1, sys.argv[2:])
