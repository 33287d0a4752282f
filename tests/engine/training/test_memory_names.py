"""What allocations are called, from stacks as torch gives them."""

import sys

import bitsandbytes.functional
import pytest
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.qwen2 import modeling_qwen2

from poros.loading.base_model import load_base_model, place_ends
from poros.loading.byte_source import SafetensorsSource
from poros.memory_plan import memory_plan
from poros.streaming import block_function
from poros.streaming.attach import attach
from poros.streaming.block_manager import BlockManager
from poros.training import exact_loss
from poros.training.host_adamw import make_planned_optimizer, travelling_adapters
from poros.training.host_ends import take_ends
from poros.training.kv_cache import is_kv_cache
from poros.training.lora import attach_lora, trainable_params
from poros.training.memory_names import NOT_NAMED, name_of, qualified
from poros.training.train_step import train_step
from tests.engine.loading.tiny_models import CPU
from tests.engine.training.tiny_run import tiny_batches, write_tiny


def frame(filename, name, line=1):
    return {"filename": filename, "name": name, "line": line}


def line_of(function):
    return function.__code__.co_firstlineno + 1


TORCH = frame("/x/torch/nn/modules/module.py", "_call_impl")
RUN = frame("/x/poros/streaming/block_function.py", "run")
FORWARD = frame("/x/poros/streaming/block_function.py", "forward")
BACKWARD = frame("/x/poros/streaming/block_function.py", "backward")
GRADIENTS = frame("/x/poros/streaming/block_function.py", "_gradients")
MLP = frame(modeling_qwen2.__file__, "forward", line_of(modeling_qwen2.Qwen2MLP.forward))
NORM = frame(modeling_qwen2.__file__, "forward", line_of(modeling_qwen2.Qwen2RMSNorm.forward))
LORA = frame("/x/peft/tuners/lora/bnb.py", "forward")
DEQUANT = frame(bitsandbytes.functional.__file__, "dequantize_4bit")


@pytest.mark.parametrize(
    ("stack", "name"),
    [
        ([TORCH, MLP, TORCH, RUN, FORWARD], "layer's forward: MLP"),
        ([TORCH, MLP, TORCH, RUN, BACKWARD], "layer's recompute: MLP"),
        ([LORA, TORCH, MLP, RUN, BACKWARD], "layer's recompute: MLP, LoRA"),
        ([DEQUANT, LORA, MLP, RUN, FORWARD], "layer's forward: MLP, dequantised weight"),
        ([NORM, TORCH, RUN, FORWARD], "layer's forward: norms"),
        ([TORCH, GRADIENTS, BACKWARD], "layer's backward"),
        ([TORCH, DEQUANT, TORCH, GRADIENTS, BACKWARD], "layer's backward: dequantised weight"),
        ([TORCH], NOT_NAMED),
        ([], NOT_NAMED),
    ],
)
def test_a_stack_has_a_name(stack, name):
    assert name_of(stack)[0] == name


def test_the_loss_is_named_by_what_it_makes():
    file = exact_loss.__file__
    chunk = [frame(file, "_log_probs"), frame(file, "put_gradient"), frame(file, "backward")]
    assert name_of(chunk)[0] == "loss: a chunk of rows"
    logits = [frame("/x/torch/nn/modules/linear.py", "forward"), frame(file, "forward")]
    assert name_of(logits)[0] == "loss: logits"


def test_a_place_has_its_class():
    place = name_of([MLP, RUN, FORWARD])[1]
    assert place.startswith("qwen2/modeling_qwen2.py:")
    assert place.endswith("Qwen2MLP.forward")


def test_a_file_that_is_not_there_leaves_the_bare_name():
    assert qualified("/nowhere.py", 3, "forward") == "forward"


def test_a_registered_kernel_is_called_after_its_operation(tmp_path):
    file = tmp_path / "ops.py"
    file.write_text('@register_kernel("lib::dequantize_4bit", "cuda")\ndef _(A):\n    return A\n')
    assert qualified(str(file), 3, "_") == "dequantize_4bit"


def test_the_functions_that_phases_are_known_by_are_there():
    assert hasattr(block_function.Visit, "run")
    assert hasattr(block_function, "_gradients")
    assert {"_reduce", "put_gradient", "exact_loss"} <= set(vars(exact_loss))


def test_code_that_is_nobodys_part_is_called_after_itself():
    around = frame("/x/peft/peft_model.py", "forward")
    assert name_of([frame("/x/poros/data/batches.py", "labels"), around])[0] == "batches: labels"


class Seen(TorchDispatchMode):
    """Names what every operation makes, as the allocator's trace would have its stack."""

    def __init__(self):
        super().__init__()
        self.names = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.names.setdefault(name_of(stack_here())[0], str(func))
        return result


def stack_here():
    found, here = [], sys._getframe(2)
    while here is not None:
        found.append(frame(here.f_code.co_filename, here.f_code.co_name, here.f_lineno))
        here = here.f_back
    return found


def test_all_of_a_real_step_has_a_name(tmp_path):
    base = load_base_model(
        SafetensorsSource(write_tiny(tmp_path)), device=CPU, cache=None, emit=lambda _: None
    )
    plan = memory_plan("min")
    ends = take_ends(base, plan, CPU)
    place_ends(base, CPU, without=ends.paths)
    model = attach_lora(base, rank=4, alpha=8, dropout=0.1, seed=7)
    params = trainable_params(model)
    optimizer = make_planned_optimizer(
        plan, params, base.layers, layers_per_block=1, weight_decay=0.0, device=CPU
    )
    manager = BlockManager(base.blocks, device=CPU)
    travelling = travelling_adapters(optimizer)
    attach(base.layers, manager, device=CPU, drop=is_kv_cache, travelling=travelling)
    ends.attach(base.model, manager, prefetch=False, emit=lambda _: None)
    batches = tiny_batches().next_step()
    with Seen() as seen:
        train_step(
            model.train(), params, optimizer, batches,
            device=CPU, learning_rate=1e-3, max_grad_norm=1.0,
        )  # fmt: skip
    assert NOT_NAMED not in seen.names
    assert {
        "layer's forward: MLP, LoRA",
        "layer's recompute: attention, LoRA",
        "layer's recompute: attention",
        "layer's backward",
        "layer's backward: dequantised weight",
        "loss: logits",
        "loss: a chunk of rows",
        "loss: gradient of the hidden states",
        "head's visit",
        "embedding rows",
        "slots of moments",
        "norm of the gradients",
        "optimizer's step",
        "norms",
    } <= set(seen.names)
