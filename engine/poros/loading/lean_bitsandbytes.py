"""Imports bitsandbytes without torch's compiler, which takes longer to import than all the rest.

bitsandbytes decorates some functions of its fallback backend with `torch.compile`, and that alone
imports the compiler, though most runs never call one. Here each is compiled at its first call.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch

Function = Callable[..., Any]


def compiled_at_first_call(compile_now: Function) -> Function:
    """What stands in for ``torch.compile``: the same result, made when it is called."""

    def stand_in(function: Function | None = None, **settings: Any) -> Function:
        if function is None:
            return functools.partial(stand_in, **settings)

        @functools.wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            return compiled()(*args, **named)

        @functools.cache
        def compiled() -> Function:
            made: Function = compile_now(function, **settings)
            return made

        return call

    return stand_in


def import_bitsandbytes() -> None:
    """Import it, if nobody has; one that is not there is told by whoever needs it."""
    if "bitsandbytes" in sys.modules:
        return
    compile_now = torch.compile
    torch.compile = compiled_at_first_call(compile_now)
    try:
        import bitsandbytes  # noqa: F401
    except ImportError:
        pass
    finally:
        torch.compile = compile_now
