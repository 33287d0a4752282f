"""bitsandbytes comes in without torch's compiler, and compiles what it would at the first call."""

import subprocess
import sys

from poros.loading.lean_bitsandbytes import compiled_at_first_call


def recorder(made):
    def compile_now(function, **settings):
        made.append(settings)
        return lambda *args, **named: ("compiled", function(*args, **named))

    return compile_now


def test_a_function_is_compiled_once_at_its_first_call():
    made = []
    stand_in = compiled_at_first_call(recorder(made))

    @stand_in(dynamic=False)
    def twice(x, *, plus=0):
        return 2 * x + plus

    assert made == []
    assert twice.__name__ == "twice"
    assert [twice(3), twice(4, plus=1)] == [("compiled", 6), ("compiled", 9)]
    assert made == [{"dynamic": False}]


def test_the_bare_decorator_works_too():
    made = []
    assert compiled_at_first_call(recorder(made))(abs)(-2) == ("compiled", 2)
    assert made == [{}]


_IMPORT = """
import sys, torch
before = torch.compile
import poros.training
assert torch.compile is before
print("bitsandbytes" in sys.modules, "torch._inductor.compile_fx" in sys.modules)
"""


def test_it_comes_in_without_the_compiler():
    run = subprocess.run(
        [sys.executable, "-c", _IMPORT], check=True, capture_output=True, text=True
    )
    assert run.stdout.split() == ["True", "False"]
