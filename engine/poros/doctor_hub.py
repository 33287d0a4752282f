"""Rows of `poros doctor` about the Hub: is there a token, does anybody answer.

Asking goes on in a thread with a time limit: a resolver that is dead holds a program for long.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

from poros.doctor_rows import Row
from poros.errors import PorosHubError
from poros.hub_client import HubClient
from poros.hub_errors import LOGIN
from poros.hub_names import HubName, endpoint, is_offline, token

PATIENCE_S = 4.0
"""For the answer, from the moment of asking."""

IDS = ("hub_token", "hub")

_ONLY_HERE = "only models and data that are on this machine can be used"


@dataclass(slots=True)
class Heard:
    """What came back.

    Attributes:
        status: Of HTTP; 0: nothing came.
        name: The user's, as the Hub knows it.
        failure: Why nothing came, or what came instead.
    """

    status: int = 0
    name: str = ""
    failure: str = ""


class HubQuestion:
    """Asks who the user is; the rows wait for the answer."""

    def __init__(self) -> None:
        """The question is on its way, unless nobody may be asked."""
        self._heard = Heard()
        self._done = threading.Event()
        self._refusal: PorosHubError | None = None
        try:
            self._has_token = bool(token())
        except PorosHubError as error:
            self._refusal, self._has_token = error, True
        if self._refusal is None and not is_offline():
            threading.Thread(target=self._ask, name="hub", daemon=True).start()

    def rows(self) -> Iterator[Row]:
        """The token's, and the Hub's unless HF_HUB_OFFLINE has a row of its own."""
        if self._refusal is not None:
            yield Row(
                "hub_token",
                "bad",
                self._refusal.message,
                "the Hub can't be asked with it",
                self._refusal.remediation,
            )
            return
        told = "a token is kept" if self._has_token else "no token"
        yield Row("hub_token", "ok", told, "models with terms, and private ones, want a token")
        if not is_offline():
            answered = self._done.wait(PATIENCE_S)
            yield hub_row(self._heard if answered else Heard(), has_token=self._has_token)

    def _ask(self) -> None:
        try:
            client = HubClient(HubName("whoami"), timeout_s=PATIENCE_S)
            self._heard.status, said = client.knock("/api/whoami-v2")
            if isinstance(said, dict):
                self._heard.name = str(said.get("name", ""))
            elif self._heard.status == 200:
                self._heard.failure = (
                    f"what answers is not {endpoint()}: a network's own page, perhaps"
                )
        except PorosHubError as error:
            self._heard.failure = error.message
        finally:
            self._done.set()


def hub_row(heard: Heard, *, has_token: bool) -> Row:
    """Whether the Hub answers, and knows the token.

    Args:
        heard: What came back.
        has_token: Whether one was sent.
    """
    if heard.failure or not heard.status:
        why = heard.failure or f"{endpoint()} did not answer within {PATIENCE_S:g} s"
        return Row(
            "hub",
            "warn",
            why,
            _ONLY_HERE,
            "check the network and the proxy (HTTPS_PROXY); export HF_HUB_OFFLINE=1 asks nobody",
        )
    if has_token and heard.status in (401, 403):
        return Row(
            "hub",
            "warn",
            f"{endpoint()} refuses the token (HTTP {heard.status})",
            "models with terms, and private ones, can't be fetched",
            LOGIN,
        )
    if heard.status >= 500 or heard.status == 429:
        return Row(
            "hub",
            "warn",
            f"{endpoint()} fails (HTTP {heard.status})",
            _ONLY_HERE,
            "try again later",
        )
    who = f" and knows you as {heard.name}" if has_token and heard.name else ""
    return Row("hub", "ok", f"{endpoint()} answers{who}", "models and data can be fetched")
