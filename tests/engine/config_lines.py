"""What a config error says."""

from collections.abc import Callable

from poros.errors import PorosConfigError


def lines_from(call: Callable[[], object]) -> list[str]:
    """The lines of the config error that a call raises; any other exception passes through."""
    try:
        call()
    except PorosConfigError as error:
        return error.lines()
    return []
