"""Where an adapter may be written: in nothing, or in an adapter's own place."""

from __future__ import annotations

from pathlib import Path

from poros.errors import PorosOutputError, escape_control
from poros.os_errors import refused

_OURS = frozenset({"adapter_config.json", "adapter_model.safetensors", "README.md", "poros_state"})


def refuse_to_lose(folder: Path) -> None:
    """Make the folder's parents, and refuse one that holds anything but an adapter.

    Raises:
        PorosOutputError: Something else lies there.
    """
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    foreign = [escape_control(name) for name in names if name not in _OURS]
    if foreign or (folder.exists() and not folder.is_dir()):
        what = f"holds other things ({', '.join(foreign[:3])})" if foreign else "is a file"
        raise PorosOutputError(
            f"the place for the adapter {what}",
            where=escape_control(str(folder)),
            remediation="give a new folder, or an earlier adapter's, which is then replaced",
        )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise refused(
            PorosOutputError,
            "the folder can't be made",
            error,
            where=folder,
            remediation="give another one",
        ) from error
