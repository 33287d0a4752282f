"""The command palette: every action of the app and of all its screens, found by typing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, cast

from textual.command import DiscoveryHit, Hit, Hits, Provider

from poros_tui.keys import Action, all_actions, written

if TYPE_CHECKING:
    from poros_tui.app import PorosApp


class Actions(Provider):
    """All actions; those of another screen go there first."""

    def _actions(self) -> Iterator[Action]:
        """Those of the screen that is shown come first."""
        here = self._shell.current_mode
        found = list(all_actions(list(self.app.BINDINGS)))
        yield from sorted(found, key=lambda action: action.screen != here)

    @property
    def _shell(self) -> PorosApp:
        return cast("PorosApp", self.app)

    def _key(self, action: Action) -> str:
        return f"key: {written(self._shell.settings.keys.get(action.id, action.keys))}"

    async def discover(self) -> Hits:
        """What the palette offers before a letter is typed."""
        for action in self._actions():
            yield DiscoveryHit(action.title, partial(self._run, action), help=self._key(action))

    async def search(self, query: str) -> Hits:
        """Fuzzy, as Textual's own."""
        matcher = self.matcher(query)
        for action in self._actions():
            score = matcher.match(action.title)
            if score > 0:
                yield Hit(
                    score, matcher.highlight(action.title), partial(self._run, action),
                    help=self._key(action),
                )  # fmt: skip

    async def _run(self, action: Action) -> None:
        await self._shell.perform(action)
