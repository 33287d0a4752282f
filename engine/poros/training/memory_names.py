"""What an allocation is for, from Python's stack when it was made.

A name has two parts: the phase (a layer's forward, its recompute, the loss, ...) and whose memory
it is there (attention, MLP, a dequantised weight, ...). Backward kernels that autograd queues by
itself have no Python frame of their own; they are the layer's backward without more.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Frames = Sequence[Mapping[str, Any]]
Qualify = Callable[[str, int, str], str]
"""File, line and function to the function's name with its class."""

NOT_NAMED = "not named"

_PHASES = (
    ("streaming/visitor.py", "fetch", "head's visit"),
    ("training/exact_loss.py", "put_gradient", "loss: a chunk of rows"),
    ("training/exact_loss.py", "_reduce", "loss: a chunk of rows"),
    ("training/exact_loss.py", "forward", "loss: logits"),
    ("training/exact_loss.py", "backward", "loss: gradient of the hidden states"),
    ("training/exact_loss.py", "exact_loss", "loss: logits"),
    ("loss/loss_utils.py", "", "loss: stock's, over whole logits"),
    ("streaming/boundaries.py", "", "boundaries on their way"),
    ("streaming/state_ring.py", "__init__", "slots of moments"),
    ("training/host_adamw.py", "clip_and_step", "optimizer's step"),
    ("training/optimizer.py", "clip_and_step", "optimizer's step"),
    ("training/train_step.py", "_total_norm", "norm of the gradients"),
    ("streaming/travelling.py", "_take_norms", "norm of the gradients"),
    ("training/host_ends.py", "_forward", "embedding rows"),
    ("streaming/block_function.py", "run", "layer's {pass}"),
    ("streaming/block_function.py", "backward", "layer's backward"),
    ("streaming/block_function.py", "forward", "layer's forward"),
    ("data/batches.py", "model_inputs", "batch"),
)
"""File, function (empty: any) and phase; the first that is in the stack counts."""

_OWNERS = (
    ("Rotary", "rotary tables"),
    ("Attention", "attention"),
    ("Attn", "attention"),
    ("Mixer", "attention"),
    ("DeltaNet", "attention"),
    ("MLP", "MLP"),
    ("Expert", "MLP"),
    ("Moe", "MLP"),
    ("FeedForward", "MLP"),
    ("Norm", "norms"),
    ("DecoderLayer", "residuals"),
    ("Embedding", "embedding rows"),
    ("CausalLM", "logits"),
)
"""What a class of the model has in its name, and what it is; from the innermost frame outwards."""

_TOOLS = (
    ("bitsandbytes/", "dequant", "dequantised weight"),
    ("bitsandbytes/", "", "4-bit product"),
    ("peft/tuners/lora/", "", "LoRA"),
    ("masking_utils.py", "", "attention mask"),
)

_PLUMBING = ("/torch/", "<frozen", "contextlib.py", "<string>")


def name_of(frames: Frames, qualify: Qualify | None = None) -> tuple[str, str]:
    """What the memory is for, and the innermost frame that says so; `NOT_NAMED` without frames.

    Args:
        frames: Innermost first, as torch has them.
        qualify: Finds a function's class; None: in its source file.
    """
    found = [_Frame(frame, qualify or qualified) for frame in frames]
    telling = [frame for frame in found if not frame.is_plumbing]
    if not telling:
        return NOT_NAMED, ""
    phase = _phase(telling)
    parts = [part for part in (_owner(telling), _tool(telling)) if part]
    if phase and not phase.startswith("layer's"):
        parts = []
    words = ", ".join(dict.fromkeys(parts))
    if phase and words:
        return f"{phase}: {words}", telling[0].place
    return phase or words or telling[0].short, telling[0].place


class _Frame:
    def __init__(self, frame: Mapping[str, Any], qualify: Qualify) -> None:
        self.file = str(frame["filename"]).replace("\\", "/")
        self.line, self.function = int(frame["line"]), str(frame["name"])
        self._qualify = qualify

    @functools.cached_property
    def name(self) -> str:
        return self._qualify(self.file, self.line, self.function)

    @property
    def place(self) -> str:
        return f"{'/'.join(self.file.split('/')[-2:])}:{self.line} {self.name}"

    @property
    def short(self) -> str:
        return f"{self.file.rpartition('/')[2].removesuffix('.py')}: {self.name}"

    @property
    def is_plumbing(self) -> bool:
        if "/torch/" in self.file and "/optim/" in self.file:
            return False
        return any(part in self.file for part in _PLUMBING)


def _phase(frames: Sequence[_Frame]) -> str:
    for file, function, phase in _PHASES:
        for frame in frames:
            if frame.file.endswith(file) and function in ("", frame.function):
                return phase.format_map({"pass": _which_pass(frames)})
    return ""


def _which_pass(frames: Sequence[_Frame]) -> str:
    functions = {f.function for f in frames if f.file.endswith("streaming/block_function.py")}
    return "recompute" if "backward" in functions else "forward"


def _owner(frames: Sequence[_Frame]) -> str:
    for frame in frames:
        if "/transformers/" in frame.file:
            for part, owner in _OWNERS:
                if part in frame.name.partition(".")[0]:
                    return owner
    return ""


def _tool(frames: Sequence[_Frame]) -> str:
    for part, function, tool in _TOOLS:
        if any(part in frame.file and function in frame.name for frame in frames):
            return tool
    return ""


def qualified(file: str, line: int, function: str) -> str:
    """A function's name with its class, read from its source; the bare name if that can't be."""
    best, best_line = function, 0
    for name, first, last in _functions(file):
        if first <= line <= last and first > best_line:
            best, best_line = name, first
    return best


@functools.cache
def _functions(file: str) -> tuple[tuple[str, int, int], ...]:
    try:
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return ()
    return tuple(_named(tree, ""))


def _named(node: ast.AST, prefix: str) -> list[tuple[str, int, int]]:
    found = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            name = f"{prefix}{_own_name(child)}"
            if not isinstance(child, ast.ClassDef):
                found.append((name, child.lineno, child.end_lineno or child.lineno))
            found += _named(child, f"{name}.")
    return found


def _own_name(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """Its name; of a kernel called ``_``, the operation that it is registered for."""
    if node.name == "_":
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call) and decorator.args:
                operation = decorator.args[0]
                if isinstance(operation, ast.Constant) and isinstance(operation.value, str):
                    return operation.value.rpartition(":")[2]
    return node.name
