"""Events made by hand, for tests that need some."""

from __future__ import annotations

from poros.events import StepFinished


def made_step(step: int, *, loss: float = 1.0, duration_s: float = 0.02) -> StepFinished:
    """A step like any other."""
    return StepFinished(
        step=step, epoch=0, loss=loss, grad_norm=1.0, learning_rate=1e-3, num_tokens=8,
        num_label_tokens=4, duration_s=duration_s, copied_bytes=1, copy_wait_s=0.0,
        device_peak_bytes=0, device_reserved_bytes=0, host_rss_bytes=1,
    )  # fmt: skip
