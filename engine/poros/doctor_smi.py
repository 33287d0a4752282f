"""Cards as `nvidia-smi` tells them, where the driver's library can't be asked; torch-free."""

from __future__ import annotations

import csv
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from poros.doctor_cards import Driver, Gpu, User, process_name
from poros.doctor_power import SMI_FIELDS, smi_power

_LIMIT_S = 10.0
_MIB = 2**20
_CARD_FIELDS = (
    "index", "uuid", "name", "memory.total", "memory.free", "compute_cap", "driver_version",
    "pcie.link.gen.current", "pcie.link.width.current", "pcie.link.gen.max", "pcie.link.width.max",
    "mig.mode.current", *SMI_FIELDS,
)  # fmt: skip
_PROCESS_FIELDS = ("gpu_uuid", "pid", "used_memory")
_WSL_PLACE = Path("/usr/lib/wsl/lib/nvidia-smi")
"""Not on everybody's PATH."""


def read_smi() -> Driver | None:
    """What the command says; None: it is not there, hangs, fails, or says something else."""
    command = shutil.which("nvidia-smi") or (str(_WSL_PLACE) if _WSL_PLACE.exists() else None)
    if command is None:
        return None
    cards = _ask(command, "gpu", _CARD_FIELDS)
    processes = _ask(command, "compute-apps", _PROCESS_FIELDS) if cards else []
    try:
        gpus = tuple(_gpu(dict(zip(_CARD_FIELDS, card, strict=True)), processes) for card in cards)
    except ValueError:
        return None
    if not gpus:
        return None
    return Driver(version=cards[0][_CARD_FIELDS.index("driver_version")], gpus=gpus, hardware=True)


def _ask(command: str, kind: str, fields: Sequence[str]) -> list[list[str]]:
    """The rows of one question; none if there is no answer."""
    words = [command, f"--query-{kind}={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, errors="replace", timeout=_LIMIT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    rows = csv.reader(done.stdout.splitlines(), skipinitialspace=True)
    return [[word.strip() for word in row] for row in rows if row]


def _gpu(card: dict[str, str], processes: Sequence[Sequence[str]]) -> Gpu:
    """One card.

    Raises:
        ValueError: What every driver tells is missing.
    """
    major, _, minor = card["compute_cap"].partition(".")
    link = [card[name] for name in _CARD_FIELDS if name.startswith("pcie")]
    users = [row for row in processes if len(row) == len(_PROCESS_FIELDS)]
    return Gpu(
        int(card["index"]),
        card["name"],
        int(card["memory.total"]) * _MIB,
        int(card["memory.free"]) * _MIB,
        (int(major), int(minor)),
        (int(link[0]), int(link[1]), int(link[2]), int(link[3]))
        if all(word.isdigit() for word in link)
        else None,
        tuple(
            User(int(pid), process_name(int(pid)), int(used) * _MIB if used.isdigit() else None)
            for uuid, pid, used in users
            if uuid == card["uuid"] and pid.isdigit()
        ),
        card["mig.mode.current"] == "Enabled",
        smi_power(card),
    )
