"""Orders from outside, carried out in the session's main thread: told to the control, answered."""

from __future__ import annotations

from collections.abc import Callable

from poros.control import Control
from poros.control_socket import Order
from poros.events import CommandAcknowledged, Event


def obey(order: Order, control: Control, emit: Callable[[Event], None], *, step: int) -> bool:
    """Carry out an order, say so in an event and answer it.

    Args:
        order: What a client sent; ``watch`` needs no event.
        control: Hands it to the trainer.
        emit: Takes the event.
        step: The last finished one.

    Returns:
        Whether the run is to end at once.
    """
    if order.command == "watch":
        order.answer("samples come until you hang up")
        order.watch()
        return False
    refusal = _refusal(order.command, control, step)
    if refusal:
        order.answer(refusal, taken=False)
        return False
    action, detail = _ACTIONS[order.command]
    action(control)
    emit(CommandAcknowledged(command=order.command, detail=detail))
    order.answer(detail)
    return order.command == "stop_now"


def _refusal(command: str, control: Control, step: int) -> str:
    """Why an order is not taken; empty: it is."""
    if command == "stop_now":
        return ""
    if control.is_stopping:
        return "the run is stopping already"
    if command == "checkpoint" and not step:
        return "there is nothing to save before the first step"
    if command == "pause" and control.is_paused:
        return "the run is paused already"
    if command == "resume" and not control.is_paused:
        return "the run is not paused"
    return ""


_ACTIONS: dict[str, tuple[Callable[[Control], None], str]] = {
    "stop": (lambda control: control.stop("stop"), "finishing the step and saving"),
    "stop_now": (Control.stop_now, "ending at once; what came after the last checkpoint is lost"),
    "checkpoint": (Control.checkpoint, "saving after this step"),
    "pause": (Control.pause, "waiting after this step"),
    "resume": (Control.resume, "going on"),
}
