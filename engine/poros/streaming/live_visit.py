"""One call of a layer in a user's own loop: what is remembered of it, and what is refused."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn

from poros.errors import PorosModelError
from poros.streaming.adapter_uses import AdapterUses, find_uses
from poros.streaming.live_checks import LiveChecks, SoleReader, close_graph, is_hooked
from poros.streaming.streamed_layer import StreamedLayer

_UNCLAIMED = "poros.prepare(model, deterministic=False) allows it; nothing is claimed then"


class LiveVisit:
    """What one call of a layer is held to.

    Args:
        streamed: The layer.
        checks: Of its model.
        adapters: What is trained inside it.
        hidden: What it is called with.

    Attributes:
        casts: What stands for autocast's casts of adapters: inputs of the layer's function.
    """

    def __init__(
        self,
        streamed: StreamedLayer,
        checks: LiveChecks,
        adapters: list[nn.Parameter],
        hidden: Tensor,
    ) -> None:
        """Take down what the layer reads beside tensors."""
        self._checks, self._adapters = checks, adapters
        modules = list(streamed.layer.modules())
        self._habits = checks.habits(modules)
        self._places = [adapter.data_ptr() for adapter in adapters]
        self._hooked = is_hooked(modules)
        self._prints: list[Tensor] | None = None
        self._uses: AdapterUses | None = None
        self._casts_to = checks.casts.dtype()
        standing = checks.casts.of(adapters)
        self.casts = [cast for cast in standing if cast is not None]
        self._has_cast = [cast is not None for cast in standing]
        # Held by the graph, which may outlive the model: by its name alone.
        self._name, self._layer = streamed.name, weakref.ref(streamed)
        self._reader = (
            SoleReader(hidden, partial(_read_outside, self._name)) if checks.exact else None
        )

    @property
    def _streamed(self) -> StreamedLayer:
        streamed = self._layer()
        assert streamed is not None, "who calls has it bound"
        return streamed

    def forward_done(self, results: Sequence[Tensor]) -> None:
        """Look at the forward's results, whose graph is dropped."""
        self._prints = self._checks.prints_of(self._streamed.layer, results, hooked=self._hooked)
        if self._hooked:
            close_graph(results, partial(_taken_out, self._name))

    def refuse_changes(self) -> None:
        """Refuse a recompute of something else than what the forward computed.

        Raises:
            PorosModelError: Something was changed in between.
        """
        changed = self._checks.habits(list(self._streamed.layer.modules())) != self._habits
        if changed or [adapter.data_ptr() for adapter in self._adapters] != self._places:
            raise self._streamed.refusal(
                "was changed between forward and backward: its active adapters, their scaling or "
                "tensors, dropout, or attention",
                "change it before the forward or after the backward",
            )

    def recomputed(self, results: Sequence[Tensor], stand_ins: Sequence[Tensor]) -> None:
        """Look at the recompute's results, in the forward's surroundings.

        Raises:
            PorosModelError: They aren't the forward's, or gradients would be added otherwise.
        """
        layer = self._streamed.layer
        prints, self._prints = self._prints, None
        if prints is not None and not self._checks.are_repeated(layer, prints, results):
            raise self._streamed.refusal(
                "gave other results when it was computed again for its backward",
                "a hook or a replaced forward inside a layer has to give the same at each call: no "
                "counters, no Python or NumPy random numbers",
            )
        self._uses = self._streamed.uses_of(
            self._adapters,
            (self._casts_to, self._habits),
            lambda: find_uses(results, stand_ins, self._casts_to),
        )
        if self._checks.added_twice(self._adapters, self._uses):
            raise self._streamed.refusal(
                "uses an adapter's weight more than once, after another call of it in the same "
                "backward: the gradients would be added in another order",
                f"call backward() after each forward, or {_UNCLAIMED}",
            )

    def leaving(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Gradients of the adapters, then of `casts`: each goes the way that it came."""
        assert self._uses is not None
        straight: list[Tensor | None] = []
        by_cast: list[Tensor | None] = []
        for gradient, cast, has in zip(gradients, self._uses.cast, self._has_cast, strict=True):
            goes_by_cast = gradient is not None and cast is not None and has
            straight.append(None if goes_by_cast else gradient)
            if has:
                by_cast.append(gradient.to(cast) if goes_by_cast and gradient is not None else None)
        return [*straight, *by_cast]

    def input_leaving(self, gradient: Tensor | None) -> None:
        """Remember the gradient of the hidden states, to know it again where it arrives."""
        if self._reader is not None:
            self._reader.gave(gradient)


def _taken_out(layer: str) -> PorosModelError:
    return PorosModelError(
        f"{layer} was hooked, and a tensor taken from inside it is used in a loss",
        remediation="take what a layer gives or gets, not what is inside: its weights are away",
    )


def _read_outside(layer: str) -> PorosModelError:
    return PorosModelError(
        f"{layer} isn't the only one that reads its hidden states with gradients: they would be "
        "added in another order",
        remediation=f"detach() what isn't learned from, or {_UNCLAIMED}",
    )
