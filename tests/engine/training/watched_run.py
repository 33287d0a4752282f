"""One run of a tiny model in this process, and everything that a setting could change about it."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import torch
from safetensors.torch import load_file
from transformers import PreTrainedModel

from poros import progress
from poros.config import PorosConfig
from poros.errors import PorosError
from poros.events import Event, StepFinished, Warned
from poros.progress import LinePrinter
from poros.streaming.block_manager import BlockManager
from poros.training import assembly, streamed_model, work
from poros.training.session import Session
from tests.engine.data.tiny_tokenizers import tiny_tokenizer
from tests.engine.loading.tiny_models import write_model

Kind = TypeVar("Kind", bound=Event)


@dataclass
class Seen:
    """A run as it looked from outside, and the parts it was made of."""

    folder: Path
    events: list[Event] = field(default_factory=list)
    error: PorosError | None = None
    printed: list[str] = field(default_factory=list)
    num_threads: int = 0
    on_hangup: Any = None
    assembly: assembly.Assembly | None = None
    copies_at_binds: list[int] = field(default_factory=list)
    num_stock_loads: int = 0
    num_random_states: int = 0

    def all(self, kind: type[Kind]) -> list[Kind]:
        """Its events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def one(self, kind: type[Kind]) -> Kind:
        """The only event of a kind."""
        [event] = self.all(kind)
        return event

    def steps(self, name: str) -> list[Any]:
        """One field of all steps."""
        return [getattr(event, name) for event in self.all(StepFinished)]

    def warnings(self) -> set[str]:
        """The codes of its warnings."""
        return {event.code for event in self.all(Warned)}

    def parts(self) -> assembly.Assembly:
        """What it was put together from."""
        assert self.assembly is not None, self.error
        return self.assembly

    def adapter(self) -> dict[str, torch.Tensor]:
        """The saved adapter."""
        return load_file(self.folder / "adapter" / "adapter_model.safetensors")

    def adapter_settings(self) -> dict[str, Any]:
        """Its PEFT settings."""
        return json.loads((self.folder / "adapter" / "adapter_config.json").read_text())

    def bits(self) -> bytes | None:
        """The adapter's file; None: there is none."""
        path = self.folder / "adapter" / "adapter_model.safetensors"
        return path.read_bytes() if path.exists() else None

    def saved(self) -> list[str]:
        """The names of its checkpoints."""
        return sorted(path.name for path in (self.folder / "checkpoints").glob("step-*"))

    def base_bytes(self) -> list[bytes]:
        """The frozen blocks."""
        return [block.host.numpy().tobytes() for block in self.parts().base.blocks]


class _Lookout:
    """Classes of the product that also note what they do."""

    def __init__(self, seen: Seen) -> None:
        class NotedManager(BlockManager):
            def bind(self, index: int, *, direction: int = 1, wrap: bool = False) -> None:
                super().bind(index, direction=direction, wrap=wrap)
                seen.copies_at_binds.append(self.num_copies)

        class NotedAssembly(assembly.Assembly):
            def __init__(self, *arguments: Any) -> None:
                super().__init__(*arguments)
                seen.assembly = self

        stock = PreTrainedModel.from_pretrained.__func__

        def from_pretrained(cls: Any, *arguments: Any, **settings: Any) -> Any:
            seen.num_stock_loads += 1
            return stock(cls, *arguments, **settings)

        get_rng_state = torch.get_rng_state

        def noted_state() -> torch.Tensor:
            seen.num_random_states += 1
            return get_rng_state()

        self.patches = [
            mock.patch.object(streamed_model, "BlockManager", NotedManager),
            mock.patch.object(work, "Assembly", NotedAssembly),
            mock.patch.object(PreTrainedModel, "from_pretrained", classmethod(from_pretrained)),
            mock.patch.object(torch, "get_rng_state", noted_state),
            # So that `auto` is the CPU everywhere, and slow steps print no line more.
            mock.patch.object(torch.cuda, "device_count", return_value=0),
            mock.patch.object(progress, "PLAIN_EVERY_S", 1e9),
        ]


def watch(settings: dict[str, Any]) -> Seen:
    """Run a config as a command does, and look."""
    seen = Seen(Path(settings["output_dir"]))
    stdout, hangup = io.StringIO(), signal.signal(signal.SIGHUP, signal.SIG_DFL)

    def listen(event: Event, line: str) -> None:
        seen.events.append(event)
        if isinstance(event, StepFinished):  # comes in the thread that trains
            seen.num_threads = torch.get_num_threads()
            seen.on_hangup = signal.getsignal(signal.SIGHUP)

    with contextlib.ExitStack() as stack:
        for patch in _Lookout(seen).patches:
            stack.enter_context(patch)
        try:
            config = PorosConfig(**settings)
            printer = LinePrinter(config, stdout, io.StringIO())
            Session(config, listeners=[listen, printer], handle_signals=True).run()
        except PorosError as error:
            seen.error = error
        finally:
            signal.signal(signal.SIGHUP, hangup)
            torch.use_deterministic_algorithms(False)
            torch.set_num_threads(1)
    seen.printed = [line for line in stdout.getvalue().splitlines() if line.startswith("step ")]
    return seen


@dataclass
class Bench:
    """A model, data and settings to change; each different start runs once."""

    folder: Path
    settings: dict[str, Any] = field(default_factory=dict)
    _seen: dict[str, Seen] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Write everything."""
        model = write_model(
            self.folder / "model", vocab_size=264, max_position_embeddings=128, hidden_size=64
        )
        tiny_tokenizer().save_pretrained(model)
        self._other_model(model)
        self.settings = {
            "model_name_or_path": str(model),
            "dataset": self._write("rows", [(f"what is {i}?", f"{i * i}.") for i in range(5)]),
            "max_seq_length": 80,
            "per_device_batch_size": 2,
            "gradient_accumulation_steps": 1,
            "warmup_steps": 1,
            "learning_rate": 1e-2,
            "lora_rank": 4,
            "save_steps": 2,
            "device": "cpu",
            "cpu_threads": 1,
        }

    def run(self, changes: dict[str, Any], *, after: dict[str, Any] | None = None) -> Seen:
        """The run with some settings changed; ``after``: started in the folder of that run."""
        key = repr((sorted(changes.items()), after))
        if key not in self._seen:
            first = None if after is None else self.run(after)
            place = {"output_dir": str(self.folder / f"out-{len(self._seen)}")}
            if first is not None:
                shutil.copytree(first.folder, place["output_dir"])
            self._seen[key] = watch(self.settings | place | changes)
        return self._seen[key]

    def _write(self, name: str, rows: list[tuple[str, str]], *, tail: str = "") -> str:
        long = ("why?", "because " * 12)
        path = self.folder / f"{name}.jsonl"
        lines = [json.dumps({"prompt": p, "completion": c}) + "\n" for p, c in [*rows, long]]
        path.write_text("".join(lines) + tail)
        return str(path)

    def _other_model(self, model: Path) -> None:
        """The model with another epsilon, one that names code, and one outside the table."""
        other = shutil.copytree(model, self.folder / "other")
        path = other / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"rms_norm_eps": 1e-3}))
        with_code = shutil.copytree(model, self.folder / "with-code")
        path = with_code / "config.json"
        named = {"auto_map": {"AutoModelForCausalLM": "modeling_own.Own"}}
        path.write_text(json.dumps(json.loads(path.read_text()) | named))
        unknown = write_model(
            self.folder / "unknown", model_type="olmo", vocab_size=264, max_position_embeddings=128
        )
        tiny_tokenizer().save_pretrained(unknown)
        self._write("other", [("who?", "nobody at all.")] * 5)
        self._write("held-out", [("where?", "there.")])
        self._write("broken", [("a?", "b.")] * 5, tail='{"prompt"\n')
