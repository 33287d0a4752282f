"""What allocations are called, from stacks as torch gives them."""

import bitsandbytes.functional
import pytest
from transformers.models.qwen2 import modeling_qwen2

from poros.streaming import block_function
from poros.training import exact_loss
from poros.training.memory_names import NOT_NAMED, name_of, qualified


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
