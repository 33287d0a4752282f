"""What is done while the blocks' bytes are read: it waits for none of them, and errs by itself."""

import threading

import pytest
import torch

from poros.errors import PorosModelError
from poros.events import PhaseStarted, Warned
from poros.loading.base_model import load_base_model
from poros.loading.byte_source import SafetensorsSource
from poros.streaming.file_reader import FileReader
from tests.engine.loading.tiny_models import CPU, write_model


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Loads a model whose NF4 is in the cache; the events are kept beside it."""
    monkeypatch.setenv("POROS_CACHE", str(tmp_path / "user cache"))
    folder = write_model(tmp_path / "model")

    def load(meanwhile=None):
        load.events = []
        return load_base_model(
            SafetensorsSource(folder),
            device=CPU,
            cache=tmp_path / "cache",
            emit=load.events.append,
            meanwhile=meanwhile,
        )

    load()
    return load


@pytest.fixture
def when_read(monkeypatch):
    """Has a function called when a block's bytes are there, before anyone is told."""
    start = FileReader.start

    def put(function):
        def changed(reader, wanted, then=None):
            of_block = then is not None

            def told():
                function()
                then()

            return start(reader, wanted, told if of_block else None)

        monkeypatch.setattr(FileReader, "start", changed)

    return put


def test_it_waits_for_no_block_and_all_are_there_at_the_end(load, when_read):
    expected = [block.host.clone() for block in load().blocks]
    begun = threading.Event()
    when_read(lambda: begun.wait(20))
    seen = []

    def meanwhile(base):
        seen.append([block._filled.done() for block in base.blocks])
        ends = base.model.get_input_embeddings().weight
        seen.append(bool(ends.float().abs().sum() > 0))
        begun.set()

    base = load(meanwhile)
    assert seen == [[False] * len(expected), True]
    assert base.from_cache
    assert [phase.phase for phase in load.events if isinstance(phase, PhaseStarted)] == [
        "load", "read",
    ]  # fmt: skip
    assert all(map(torch.equal, [block.host for block in base.blocks], expected))


@pytest.mark.parametrize(
    "error", [PorosModelError("the adapter's"), torch.OutOfMemoryError("full"), MemoryError()]
)
def test_its_error_is_not_taken_for_the_loads(load, error):
    def meanwhile(_):
        raise error

    with pytest.raises(type(error)) as caught:
        load(meanwhile)
    assert caught.value is error
    assert not [event for event in load.events if isinstance(event, Warned)]
    assert load().from_cache


def test_a_cache_that_cannot_be_read_on_begins_the_load_anew(load, when_read):
    good, bases, called = load(), [], threading.Event()

    def meanwhile(base):
        bases.append(base)
        called.set()

    def fail_once():
        called.wait(20)
        if len(bases) == 1:
            raise PorosModelError("a bad sector")

    when_read(fail_once)
    base = load(meanwhile)
    codes = [event.code for event in load.events if isinstance(event, Warned)]
    assert "nf4-cache-damaged" in codes
    first, second = bases
    assert first.model is not second.model
    assert base.model is second.model
    assert not base.from_cache
    assert all(map(torch.equal, [b.host for b in base.blocks], [b.host for b in good.blocks]))
