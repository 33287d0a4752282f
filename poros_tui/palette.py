"""The command palette: every action of the app and of all its screens, found by typing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, cast

from textual.command import DiscoveryHit, Hit, Hits, Provider

from poros_tui.keys import Action, all_actions

if TYPE_CHECKING:
    from poros_tui.app import PorosApp


class Actions(Provider):
    """All actions; those of another screen go there first."""

    def _actions(self) -> Iterator[Action]:
        yield from all_actions(list(self.app.BINDINGS))

    async def discover(self) -> Hits:
        """What the palette offers before a letter is typed."""
        for action in self._actions():
            yield DiscoveryHit(action.title, partial(self._run, action), help=action.id)

    async def search(self, query: str) -> Hits:
        """Fuzzy, as Textual's own."""
        matcher = self.matcher(query)
        for action in self._actions():
            score = matcher.match(action.title)
            if score > 0:
                yield Hit(
                    score, matcher.highlight(action.title), partial(self._run, action),
                    help=action.id,
                )  # fmt: skip

    async def _run(self, action: Action) -> None:
        await cast("PorosApp", self.app).perform(action)
