"""What all tests share."""

import gc
import os
import signal
import tempfile
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

# A shell that starts the tests in the background, or nohup, would hand its ignored signals down to
# the runs that the tests send signals to.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
signal.signal(signal.SIGTERM, signal.SIG_DFL)

# A busy machine makes examples slow; that is no failure.
settings.register_profile("poros", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("poros")

# A process for each core: threads of tiny tensors would wait for one another, spinning, and cost
# ten times the processor. Here before torch is loaded, and for the processes that tests start.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

# Runs are remembered for `poros runs list`: those of tests not in the list of whoever starts them.
_state = tempfile.TemporaryDirectory()
os.environ["XDG_STATE_HOME"] = _state.name


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep what imports make from the garbage collector: it stays until the end anyway."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
