"""Faults that no file can hold: each runs in the process of a trial, before its command line."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def quick_hub() -> None:
    """The Hub's library waits between its tries."""
    time.sleep = lambda seconds: None


def offline_hub() -> None:
    """As with HF_HUB_OFFLINE=1, which the Hub's library reads when it is imported."""
    from huggingface_hub import constants

    constants.HF_HUB_OFFLINE = True


def signal_in_second_save() -> None:
    """The signal SEND once at the failpoint SEND_AT as soon as there is a checkpoint."""
    from poros import failpoints

    number, point = signal.Signals[os.environ["SEND"]], [os.environ["SEND_AT"]]

    def hit(name: str) -> None:
        if name in point and any(Path("out/checkpoints").glob("step-*")):
            point.clear()
            os.kill(os.getpid(), number)

    failpoints.hit = hit


def nohup() -> None:
    """SIGHUP is ignored from the start."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def clock_a_year_ahead() -> None:
    """The wall clock is wrong."""
    _shift_clock(365 * 86400)


def clock_a_year_behind() -> None:
    """The wall clock is wrong."""
    _shift_clock(-365 * 86400)


def other_library() -> None:
    """Another version of a library that computes."""
    from poros.training import run_inputs

    versions = run_inputs.versions()
    run_inputs.versions = lambda: versions | {"peft": "0.0.1"}


def other_instruction_set() -> None:
    """A processor of another kind."""
    import torch

    torch.backends.cpu.get_cpu_capability = lambda: "VSX"


def no_memory_at_step_3() -> None:
    """An allocation of Python's fails."""
    _raise_at_step_3(MemoryError())


def no_tensor_memory_at_step_3() -> None:
    """An allocation of torch's fails, of more than any machine has."""
    import torch

    _at_step_3(lambda: torch.empty(1 << 60, dtype=torch.uint8))


def little_address_space_at_step_3() -> None:
    """RLIMIT_AS, and then a need for a gigabyte."""
    import torch

    def fill() -> None:
        num_pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
        now_bytes = num_pages * resource.getpagesize()
        limit_bytes = now_bytes + (256 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))
        torch.ones(1 << 30, dtype=torch.uint8)

    _at_step_3(fill)


def no_memory_in_main_thread() -> None:
    """An allocation fails before there is a worker."""
    from poros import run_folder

    run_folder._prove_writable = _raising(MemoryError())


def no_device_memory_at_step_3() -> None:
    """The device is full."""
    import torch

    _raise_at_step_3(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU"))


def device_lost_at_step_3() -> None:
    """A sticky error; then any further call of the device, by a destructor or at exit, is told."""
    import torch

    def lose() -> None:
        for name in ("synchronize", "empty_cache", "mem_get_info", "current_stream", "Event"):
            setattr(torch.cuda, name, _raising(RuntimeError("called after the loss")))
        torch.cuda.is_initialized = _raising(RuntimeError("called after the loss"))
        raise torch.AcceleratorError("CUDA error: device-side assert triggered\nMore text")

    _at_step_3(lose)


def nan_weight_at_step_3() -> None:
    """A weight of the adapter is NaN."""
    _spoil_at_step_3(lambda model, params: params[0][1].data.fill_(float("nan")))


def inf_activation_at_step_3() -> None:
    """What a layer gives is infinite."""

    def spoil(model: Any, params: Any) -> None:
        head = model.get_base_model().lm_head
        head.register_forward_pre_hook(lambda module, inputs: (inputs[0] * float("inf"),))

    _spoil_at_step_3(spoil)


def nan_gradient_at_step_3() -> None:
    """A gradient is NaN, the loss is not."""
    _spoil_at_step_3(
        lambda model, params: params[1][1].register_hook(lambda grad: grad * float("nan"))
    )


def no_pinned_memory() -> None:
    """A CUDA whose host registration is refused, as WSL2 and a low RLIMIT_MEMLOCK refuse it."""
    from poros.streaming import host_memory

    class Runtime:
        def cudaHostRegister(self, *arguments: object) -> int:  # noqa: N802  CUDA's name
            return 2

    real = host_memory.HostBuffer.register

    def register(self: Any) -> None:
        kind, host_memory.torch = host_memory.torch, _with_cuda(host_memory.torch, Runtime)
        device, self._device = self._device, host_memory.torch.device("cuda")
        try:
            real(self)
        finally:
            host_memory.torch, self._device = kind, device
        assert not self.registered
        print("registration refused", flush=True)

    host_memory.HostBuffer.register = register


def fork_that_outlives_us() -> None:
    """A worker process that inherits the lock's descriptor and survives its parent."""

    def fork() -> None:
        if os.fork() == 0:
            time.sleep(20)
            os._exit(0)

    _at_step_3(fork)


def sigint_in_step_3() -> None:
    """Ctrl-C."""
    _at_step_3(lambda: os.kill(os.getpid(), signal.SIGINT))


def sigterm_in_step_3() -> None:
    """As `kill` sends."""
    _at_step_3(lambda: os.kill(os.getpid(), signal.SIGTERM))


def sighup_in_step_3() -> None:
    """The terminal closes."""
    _at_step_3(lambda: os.kill(os.getpid(), signal.SIGHUP))


def nohup_and_sighup() -> None:
    """The terminal closes under nohup."""
    nohup()
    sighup_in_step_3()


def sigint_twice_in_step_3() -> None:
    """An impatient Ctrl-C; the step would last for minutes."""
    sleep = time.sleep  # not the one that another plant may have replaced

    def both() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)
        sleep(60)

    _at_step_3(both)


def _shift_clock(seconds: float) -> None:
    real = time.time
    time.time = lambda: real() + seconds


def _at_step_3(act: Callable[[], object]) -> None:
    _spoil_at_step_3(lambda model, params: act())


def _raise_at_step_3(error: Exception) -> None:
    _at_step_3(_raising(error))


def _spoil_at_step_3(spoil: Callable[[Any, Any], object]) -> None:
    from poros.training import trainer

    real = trainer.train_step
    num_calls = 0

    def train_step(model: Any, params: Any, *arguments: Any, **named: Any) -> Any:
        nonlocal num_calls
        num_calls += 1
        if num_calls == 3:
            spoil(model, params)
        return real(model, params, *arguments, **named)

    trainer.train_step = train_step


def _raising(error: Exception) -> Callable[..., Any]:
    def fail(*arguments: object, **named: object) -> Any:
        raise error

    return fail


def _with_cuda(torch: Any, runtime: Callable[[], Any]) -> Any:
    """Torch with a CUDA that can do nothing but answer for its runtime."""

    class Torch:
        cuda = type("cuda", (), {"cudart": staticmethod(runtime), "device": contextlib.nullcontext})
        zeros = staticmethod(_raising(RuntimeError("CUDA error: out of memory")))

        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

    return Torch()
