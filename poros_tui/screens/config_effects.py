"""What other values of the shown settings would do, computed beside the interface's thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from poros.config import PorosConfig
from poros_tui.screens.config_cost import Cost, effect


class Effects:
    """The newest question counts; its answers come one by one."""

    def __init__(self) -> None:
        """Nothing was asked."""
        self._told: dict[str, str] = {}
        self._question: tuple[PorosConfig, Cost, tuple[str, ...]] | None = None
        self._has_news = False

    def ask(
        self,
        config: PorosConfig,
        now: Cost,
        cost_of: Callable[[PorosConfig], Cost],
        keys: Sequence[str],
    ) -> None:
        """Compute for these settings, unless that is what is being computed; returns at once."""
        question = (config, now, tuple(keys))
        if question == self._question:
            return
        self._question = question
        if not keys:
            return
        threading.Thread(
            target=self._run, args=(question, cost_of), name="config effects", daemon=True
        ).start()

    def told(self, key: str) -> str:
        """Of a setting; what was true of the config before stays until there is something new."""
        return self._told.get(key, "")

    def take_news(self) -> bool:
        """Whether answers came since the last call."""
        news, self._has_news = self._has_news, False
        return news

    def _run(
        self,
        question: tuple[PorosConfig, Cost, tuple[str, ...]],
        cost_of: Callable[[PorosConfig], Cost],
    ) -> None:
        config, now, keys = question
        told = {}
        for key in keys:
            if self._question is not question:
                return  # something else is asked meanwhile
            told[key] = effect(key, config, now, cost_of)
        if told != self._told:
            self._told, self._has_news = told, True
