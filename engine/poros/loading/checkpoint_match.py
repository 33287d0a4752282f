"""Every tensor of a checkpoint against every tensor of the model: each is used once, or we stop.

Nothing is ever initialised at random: what the model has and the checkpoint lacks is an error, and
so is what the checkpoint has and the model lacks, unless the family's list leaves it out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from poros.arch_table import ArchSpec
from poros.errors import PorosModelError
from poros.weights_index import TensorHeader, short_list

FLOATS = ("BF16", "F16", "F32")
"""The stored types that a dense tensor may have; each is converted as stock does."""

_MEND = "restore the config.json that belongs to these weights, or download both again"


@dataclass(frozen=True)
class Expected:
    """What the config makes us expect of a stored tensor; shape None: any."""

    dtypes: tuple[str, ...]
    shape: tuple[int, ...] | None


@dataclass(frozen=True)
class CheckpointMatch:
    """Which stored tensor fills which of the model's.

    Attributes:
        stored_name: The model's tensor name to the checkpoint's.
        tied_copies: Stored copies of a tied tensor, to the stored tensor they must equal.
        left_out_bytes: Stored tensors that the family has no use for.
    """

    stored_name: dict[str, str]
    tied_copies: dict[str, str] = field(default_factory=dict)
    left_out_bytes: dict[str, int] = field(default_factory=dict)


def match_checkpoint(
    headers: Mapping[str, TensorHeader],
    expected: Mapping[str, Expected],
    *,
    tied: Mapping[str, str],
    architecture: ArchSpec,
    where: str,
) -> CheckpointMatch:
    """Pair them all.

    Args:
        headers: What the checkpoint has.
        expected: What the model needs, tied copies not among it.
        tied: Name of a tied copy to the name it shares a tensor with.
        architecture: Its list of tensors left out.
        where: The checkpoint, for messages.

    Raises:
        PorosModelError: With the full list of what is missing, unknown or of another shape.
    """
    match = CheckpointMatch({name: name for name in expected if name in headers})
    for copy, source in tied.items():
        if copy in headers and source in headers:
            match.tied_copies[copy] = source
        elif copy in headers:
            match.stored_name[source] = copy
    used = set(match.stored_name.values()) | match.tied_copies.keys()
    unused = [name for name in headers if name not in used]
    for name in unused:
        if any(re.search(pattern, name) for pattern in architecture.left_out):
            match.left_out_bytes[name] = headers[name].num_bytes
    _refuse_names(
        missing=[name for name in expected if name not in match.stored_name],
        unknown=[name for name in unused if name not in match.left_out_bytes],
        headers=headers,
        expected=expected,
        architecture=architecture,
        where=where,
    )
    _refuse_headers(headers, expected, match, where=where)
    return match


def _refuse_names(
    *,
    missing: list[str],
    unknown: list[str],
    headers: Mapping[str, TensorHeader],
    expected: Mapping[str, Expected],
    architecture: ArchSpec,
    where: str,
) -> None:
    if not missing and not unknown:
        return
    parts = []
    found, needed = _num_layers(headers, architecture), _num_layers(expected, architecture)
    if found != needed:
        parts.append(f"{found} layers stored, {needed} expected from config.json")
    if missing:
        parts.append(f"missing: {short_list(missing)}")
    if unknown:
        parts.append(f"no place in a {architecture.model_type} model: {short_list(unknown)}")
    raise PorosModelError(
        f"checkpoint and config disagree: {'; '.join(parts)}", where=where, remediation=_MEND
    )


def _num_layers(names: Iterable[str], architecture: ArchSpec) -> int:
    pattern = re.compile(re.escape(architecture.layers_path) + r"\.(\d+)\.")
    return len({found[1] for name in names if (found := pattern.match(name))})


def _refuse_headers(
    headers: Mapping[str, TensorHeader],
    expected: Mapping[str, Expected],
    match: CheckpointMatch,
    *,
    where: str,
) -> None:
    pairs = list(match.stored_name.items())
    pairs += [(source, copy) for copy, source in match.tied_copies.items()]
    wrong = []
    for name, stored_name in pairs:
        header, wanted = headers[stored_name], expected[name]
        if header.dtype not in wanted.dtypes:
            wrong.append(f"{stored_name} is {header.dtype}, expected {' or '.join(wanted.dtypes)}")
        elif wanted.shape is not None and header.shape != wanted.shape:
            found, needed = list(header.shape), list(wanted.shape)
            wrong.append(f"{stored_name} is {found}, expected {needed} from the config")
    if wrong:
        more = f" (and {len(wrong) - 4} more)" if len(wrong) > 4 else ""
        raise PorosModelError("; ".join(wrong[:4]) + more, where=where, remediation=_MEND)
