"""Work that is begun before it is needed, in a thread that holds up neither an error nor an end."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import torch


class Ahead:
    """One function that runs beside; whoever needs its effect waits, and then calls it again.

    Its failure is nobody's here: the call that needs the effect fails in the same way.

    Args:
        work: Called once, in a thread of its own. A second call must be cheap after a good one.
    """

    def __init__(self, work: Callable[[], object]) -> None:
        """It begins at once."""
        self._work = work
        # A daemon: a run that ends on bad data must not wait for it.
        self._thread = threading.Thread(target=self._run, name="ahead", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Return once it has ended, well or not."""
        self._thread.join()

    def _run(self) -> None:
        with contextlib.suppress(Exception):
            self._work()


def start_device(device: torch.device) -> None:
    """Make CUDA's context on the device, which takes seconds; nothing on the CPU."""
    if device.type == "cuda":
        torch.cuda.init()
        with torch.cuda.device(device):
            event = torch.cuda.Event()
            event.record()
            event.synchronize()
