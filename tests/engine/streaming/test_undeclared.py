"""What a layer takes or gives without being declared to is refused by name, at once."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from poros.errors import PorosModelError
from poros.measure.fingerprint import same_bits
from poros.streaming.attach import SideRules
from tests.engine.streaming.sharing_toy import SharingModel
from tests.engine.streaming.toy import WIDTH, ToyModel, gradients, stream

NOTHING = SideRules()


class PlainLayer(nn.Module):
    """Hidden states in and out, and one odd thing that `odd` does."""

    def __init__(self, odd: Callable[[PlainLayer, Tensor], Any]) -> None:
        super().__init__()
        self.odd = odd
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / 3, requires_grad=False)
        self.register_buffer("scale", torch.rand(3))
        self.adapter = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor, extra: Any = None) -> Any:
        del extra
        return hidden + self.odd(self, self.adapter(hidden @ self.weight))


class PlainModel(ToyModel):
    """Three such layers; `outside` is no part of them."""

    def __init__(
        self, odd: Callable[[PlainLayer, Tensor], Any] = lambda _, x: x, extra: Any = None
    ) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.outside = nn.Linear(WIDTH, WIDTH)
        self.extra = extra
        self.layers = nn.ModuleList(PlainLayer(odd) for _ in range(3))

    def forward(self, hidden: Tensor, memory: object = None) -> Tensor:
        hidden = self.outside(hidden * self.first)
        for layer in self.layers:
            hidden = layer(hidden, self.extra)
        return hidden.sum()


def refusal(model: ToyModel, rules: SideRules = NOTHING) -> str:
    """What the first forward says; the second says the same, and no gradient was made."""
    stream(model, rules=rules)
    said = []
    for _ in range(2):
        with pytest.raises(PorosModelError) as error:
            model(torch.ones(4, WIDTH))
        said.append(str(error.value))
    assert said[0] == said[1]
    assert all(parameter.grad is None for parameter in model.parameters())
    return said[0]


def test_a_second_tensor_that_needs_gradients() -> None:
    said = refusal(ToyModel(), SideRules(shared_states=True))
    assert (
        "layer 0 (ToyLayer) takes a second tensor that needs gradients, its argument side" in said
    )
    assert "set per_layer_input=True" in said


def test_a_mapping_that_is_written() -> None:
    said = refusal(SharingModel(), SideRules(per_layer_input=True))
    assert "layer 1 (SharingLayer) writes 'keys' into shared" in said
    assert "set shared_states=True" in said


def test_a_mapping_that_comes_with_a_tensor_that_needs_gradients() -> None:
    table = torch.ones(4, WIDTH, requires_grad=True)
    said = refusal(PlainModel(extra={"a": 1, "table": [table]}), SideRules(per_layer_input=True))
    assert "layer 0 (PlainLayer) reads 'table', which needs gradients, from extra" in said


def test_a_parameter_outside_the_layers() -> None:
    model = PlainModel(lambda layer, x: layer.others[0](x))
    for layer in model.layers:
        layer.others = [model.outside]
    said = refusal(model)
    assert said.startswith("layer 0 (PlainLayer) computes with outside.")


def test_an_attribute_computed_from_the_models_parameters() -> None:
    model = PlainModel(lambda layer, x: x * layer.side)
    for layer in model.layers:
        layer.side = model.first * 2
    assert "layer 0 (PlainLayer) computes with first, which needs gradients" in refusal(model)


def test_a_leaf_that_hangs_on_the_layer() -> None:
    model = PlainModel(lambda layer, x: x * layer.side)
    model.layers[0].side = torch.ones(WIDTH)
    model.layers[1].side = torch.ones(WIDTH, requires_grad=True)
    assert "layer 1 (PlainLayer) computes with its attribute side" in refusal(model)


def test_a_value_that_hides_a_tensor() -> None:
    class Hiding:
        tensor: Tensor | None = None

    hiding = Hiding()

    def odd(layer: PlainLayer, x: Tensor) -> Tensor:
        seen, hiding.tensor = hiding.tensor, x
        return x if seen is None else x + seen

    said = refusal_once(PlainModel(odd, hiding))
    assert "layer 1 (PlainLayer) computes with" in said


def test_a_result_that_is_another_modules_parameter() -> None:
    model = ToyModel()
    free = nn.Parameter(torch.ones(4, WIDTH))
    model.layers[0].forward = lambda hidden, side, memory: (hidden, {"side": free})
    assert "layer 0 (ToyLayer) computes with a torch.float32 tensor of shape (4, 8)" in refusal(
        model, SideRules(per_layer_input=True)
    )


def refusal_once(model: ToyModel) -> str:
    stream(model)
    with pytest.raises(PorosModelError) as error:
        model(torch.ones(4, WIDTH))
    return str(error.value)


class OwnMapping(MutableMapping[str, Any]):
    """A mapping of its own kind."""

    def __init__(self) -> None:
        self.data: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        return self.data[key]

    def __setitem__(self, key: str, value: object) -> None:
        self.data[key] = value

    def __delitem__(self, key: str) -> None:
        del self.data[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def __len__(self) -> int:
        return len(self.data)


@pytest.mark.parametrize(
    "extra", [OwnMapping(), [OwnMapping()], {"inner": [UserDict()]}, UserDict(inner={"a": {}})]
)
def test_a_mapping_that_cannot_be_made_anew(extra: object) -> None:
    said = refusal(PlainModel(extra=extra), SideRules(shared_states=True))
    assert "layer 0 (PlainLayer) takes a mapping in its argument extra" in said


def test_a_list_that_a_layer_appends_to() -> None:
    model = PlainModel(extra=[])

    def appending(hidden: Tensor, extra: list[Tensor]) -> Tensor:
        extra.append(hidden * 2)
        return hidden

    model.layers[1].forward = appending
    assert "layer 1 (PlainLayer) changes its argument extra" in refusal(model)


def test_a_result_in_which_tensors_cannot_be_seen() -> None:
    model = PlainModel()
    model.layers[2].forward = lambda hidden, extra: (hidden, UserDict(hidden=hidden * 2))
    assert "layer 2 (PlainLayer) gives a UserDict" in refusal(model)


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # dynamo's own
def test_a_compiled_layer_with_a_parameter_from_outside() -> None:
    torch._dynamo.reset()
    model = PlainModel(lambda layer, x: x * layer.others[0])
    for layer in model.layers:
        layer.others = [model.first]
        layer.forward = torch.compile(layer.forward, dynamic=False, backend="aot_eager")
    assert "layer 0 (PlainLayer) computes with first" in refusal(model)


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # dynamo's own
def test_what_is_declared_or_frozen_is_not_refused() -> None:
    def make() -> PlainModel:
        torch._dynamo.reset()
        frozen = UserDict(mask=torch.ones(4, 1), name="a", rows=[torch.arange(4)])
        model = PlainModel(lambda layer, x: layer.both[0](x) * layer.table, frozen)
        shared = nn.Linear(WIDTH, WIDTH)  # as adapters that keep one parameter for all layers
        for layer in model.layers:
            layer.both = nn.ModuleList([shared])
            layer.table = torch.rand(WIDTH)
        model.layers[1].forward = torch.compile(
            model.layers[1].forward, dynamic=False, backend="aot_eager"
        )
        return model

    streamed = make()
    stream(streamed, rules=NOTHING)
    assert all(map(same_bits, gradients(streamed), gradients(make())))
