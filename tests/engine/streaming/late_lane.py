"""A lane on which bytes move as late as CUDA may move them, in both directions."""

from __future__ import annotations

from torch import Tensor

from poros.streaming.device_slots import Slot


class LateReturnLane:
    """Copies happen when somebody waits for them; stores when somebody waits for what they free.

    Who writes into a slot without waiting, or reads a host buffer without settling, meets the
    wrong bytes here as he might on CUDA.
    """

    def __init__(self) -> None:
        self._copies: dict[int, Tensor | None] = {}
        self._stores: list[tuple[Slot, Tensor]] = []

    def keep(self, slot: Slot) -> None:
        """Whoever holds a slot here keeps its memory."""

    def copy(self, slot: Slot, host: Tensor) -> None:
        self._copies[id(slot)] = host

    def claim(self, slot: Slot) -> None:
        self._copies[id(slot)] = None

    def store(self, slot: Slot, host: Tensor) -> None:
        self._stores.append((slot, host))

    def wait(self, slot: Slot) -> None:
        if id(slot) not in self._copies:
            return
        host = self._copies.pop(id(slot))
        self._end_stores(lambda of, to: of is slot or (host is not None and to is host))
        if host is not None:
            slot.buffer[: host.numel()].copy_(host)

    def release(self, slot: Slot) -> None:
        assert id(slot) not in self._copies, "released before it arrived"

    def settle(self) -> None:
        self._end_stores(lambda of, to: True)

    def take_wait_s(self) -> float:
        return 0.0

    def _end_stores(self, wanted) -> None:
        # All of one lane's stores run in one stream: those before it end first.
        last = max((k for k, store in enumerate(self._stores) if wanted(*store)), default=-1)
        for slot, host in self._stores[: last + 1]:
            host.copy_(slot.buffer[: host.numel()])
        del self._stores[: last + 1]
