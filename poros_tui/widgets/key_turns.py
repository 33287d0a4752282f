"""One key after the other: each belongs to what has the keyboard once the one before is done."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable

from textual.app import App
from textual.events import Key
from textual.message_pump import MessagePump

_LONGEST_S = 2.0
"""A key whose widget went away meanwhile, or works on, is waited for no longer."""


class KeyTurns:
    """Holds the keys that come while another is on its way.

    Textual hands a key to the widget that has the keyboard and looks at the next one at once. The
    first comes back as a command later, which may give the keyboard to a field: what is typed
    right after it would still be commands then.
    """

    def __init__(self, app: App[int], hand_on: Callable[[Key], Awaitable[None]]) -> None:
        """``hand_on`` is what the app does with a key whose turn it is."""
        self._app, self._hand_on = app, hand_on
        self._waiting: deque[Key] = deque()
        self._at_work: Key | None = None
        self._since_s = 0.0

    async def take(self, key: Key) -> None:
        """A key from the terminal: now, or when its turn comes."""
        now = self._at_work
        # Enter once more is for what the first one answers, and not for what shows after it.
        is_again = now is not None and key.key == now.key == "enter" and not self._waiting
        if now is None or is_again:
            await self._begin(key)
        else:
            self._waiting.append(key)

    async def tick(self) -> None:
        """Go on, if a key is at work for too long."""
        if self._at_work is not None and time.monotonic() - self._since_s > _LONGEST_S:
            await self._end(self._at_work)

    async def _begin(self, key: Key) -> None:
        self._at_work, self._since_s = key, time.monotonic()
        place: MessagePump = self._app.focused or self._app.screen
        await self._hand_on(key)
        if key.is_forwarded:
            self._follow(key, place)
        else:
            self._app.call_later(self._end, key)

    def _follow(self, key: Key, place: MessagePump) -> None:
        """Behind the key on its way up, in the queue of each widget that may answer it."""
        if not place.call_later(self._passed, key, place):
            self._app.call_later(self._end, key)

    def _passed(self, key: Key, place: MessagePump) -> None:
        above = place._parent
        if above is None or key._stop_propagation:
            # Once more round: `Widget.focus` waits in the app's queue.
            self._app.call_later(self._end, key)
        else:
            self._follow(key, above)

    async def _end(self, key: Key) -> None:
        if key is not self._at_work:
            return
        self._at_work = None
        if self._waiting:
            await self._begin(self._waiting.popleft())
