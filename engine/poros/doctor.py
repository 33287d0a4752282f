"""`poros doctor`: is this machine fit for training, row by row, without torch in this process?"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from poros import doctor_child, doctor_gpu, doctor_host, doctor_software
from poros.doctor_host import Disk
from poros.doctor_rows import Row
from poros.hub_names import hub_cache
from poros.machine_rates import keep_rates
from poros.user_cache import CACHE_VARIABLE, user_cache


def examine(*, output_dir: Path, timeout_s: float, kernels: bool = True) -> Iterator[Row]:
    """Look at everything, the quick things first; each row comes as soon as it is known.

    Args:
        output_dir: Where a run would write.
        timeout_s: For the child process that tries kernels.
        kernels: False leaves that child out.
    """
    yield from doctor_host.host_rows(_disks(output_dir))
    driver = doctor_gpu.read_driver()
    yield from doctor_gpu.gpu_rows(driver)
    yield from doctor_software.software_rows(os.environ)
    gpus = doctor_gpu.visible_gpus(driver, os.environ)
    capability = gpus[0].capability if gpus else None
    if missing := doctor_child.missing_package():
        yield from doctor_child.rows_without_torch(missing, gpu=capability is not None)
    elif kernels:
        outcome = doctor_child.run_probe(gpu=0 if gpus else None, timeout_s=timeout_s)
        if gpus and (rates := doctor_child.measured_rates(outcome)) is not None:
            keep_rates(gpus[0].name, rates)
        yield from doctor_child.probe_rows(outcome, capability)


def _disks(output_dir: Path) -> list[Disk]:
    return [
        Disk("disk_hub", "downloaded models", hub_cache(), "export HF_HOME=/a/larger/disk"),
        Disk("disk_cache", "quantised blocks", user_cache(), f"export {CACHE_VARIABLE}=/a/folder"),
        Disk("disk_output", "checkpoints", output_dir, "set output_dir, or --output-dir"),
    ]
