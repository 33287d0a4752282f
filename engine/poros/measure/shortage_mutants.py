"""Mutants of a step that is made again because memory ran out in it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from unittest import mock

from poros.measure.mutant_bench import Bench, Mutant, Setting
from poros.training import train_step
from poros.training.determinism import set_rng_state

RUNS_OUT = Setting(disturb="memory")

LOSSES = r"^loss\."
GRADS_ABOVE = r"^grad\..*layers\.{above_middle}\."


@contextlib.contextmanager
def random_state_not_put_back(bench: Bench) -> Iterator[None]:
    """The step that is made again draws on from where the failed one was."""
    del bench
    with mock.patch.object(train_step, "set_rng_state"):
        yield


@contextlib.contextmanager
def gradients_kept(bench: Bench) -> Iterator[None]:
    """The step that is made again adds to what the failed one had summed."""
    del bench

    def undo(step: train_step._Step) -> None:
        set_rng_state(step._random, step.device)

    with mock.patch.object(train_step._Step, "undo_gradients", undo):
        yield


SHORTAGE_MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "random state not put back when a step is made again", random_state_not_put_back,
        RUNS_OUT, first=r"^loss\.0",
    ),
    Mutant(
        "gradients of a step that ran out of memory kept", gradients_kept, RUNS_OUT,
        first=r"^grad\.", equal=(LOSSES,), differ=(GRADS_ABOVE, "^grad_norm$"),
    ),
)  # fmt: skip
