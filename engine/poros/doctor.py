"""`poros doctor`: is this machine fit for training, row by row, without torch in this process?"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import chain
from pathlib import Path

from poros import doctor_child, doctor_gpu, doctor_host, doctor_hub, doctor_probe, doctor_software
from poros.doctor_cards import Driver, Gpu
from poros.doctor_host import Disk
from poros.doctor_rows import Row
from poros.hub_names import hub_cache
from poros.machine_rates import keep_rates
from poros.user_cache import CACHE_VARIABLE, user_cache


def examine(
    *,
    output_dir: Path,
    timeout_s: float,
    kernels: bool = True,
    network: bool = True,
    only: Collection[str] = (),
    trying: Callable[[str, str], None] = lambda *_: None,
) -> Iterator[Row]:
    """Look at everything, the quick things first; each row comes as soon as it is known.

    Args:
        output_dir: Where a run would write.
        timeout_s: For the child process that tries kernels.
        kernels: False leaves that child out.
        network: False: the Hub is not asked.
        only: The rows that are wanted, by id; empty: all.
        trying: Told the id, and what it is, of each row of that child when its turn comes.
    """
    asks = network and (not only or not set(only).isdisjoint(doctor_hub.IDS))
    hub = doctor_hub.HubQuestion() if asks else None
    driver = doctor_gpu.read_driver()
    quick = chain(
        doctor_host.host_rows(_disks(output_dir)),
        doctor_gpu.gpu_rows(driver),
        doctor_software.software_rows(os.environ),
    )
    yield from (row for row in quick if not only or row.id in only)
    yield from _probed(driver, timeout_s, kernels, only, trying)
    if hub is not None:
        # Last: whatever was looked at meanwhile is time that the answer had.
        yield from (row for row in hub.rows() if not only or row.id in only)


def _probed(
    driver: Driver,
    timeout_s: float,
    kernels: bool,
    only: Collection[str],
    trying: Callable[[str, str], None],
) -> Iterator[Row]:
    """Rows of the child that tries kernels, or why it can't be started."""
    probes = [name for name in doctor_child.PROBES if not only or name in only]
    if not probes:
        return
    gpus = doctor_gpu.visible_gpus(driver, os.environ)
    if missing := doctor_child.missing_package():
        found = doctor_child.rows_without_torch(missing, gpu=bool(gpus))
        yield from (row for row in found if row.id in probes)
    elif kernels:
        yield from _try_kernels(gpus[0] if gpus else None, probes, timeout_s, trying)


def _try_kernels(
    gpu: Gpu | None,
    probes: Sequence[str],
    timeout_s: float,
    trying: Callable[[str, str], None],
) -> Iterator[Row]:
    said = doctor_probe.watch(gpu=0 if gpu else None, timeout_s=timeout_s, probes=probes)
    capability = gpu.capability if gpu else None
    outcome = yield from doctor_child.live_rows(said, capability, trying=trying, only=probes)
    if gpu is not None and (rates := doctor_child.measured_rates(outcome)) is not None:
        keep_rates(gpu.name, rates)


def _disks(output_dir: Path) -> list[Disk]:
    return [
        Disk("disk_hub", "downloaded models", hub_cache(), "export HF_HOME=/a/larger/disk"),
        Disk("disk_cache", "quantised blocks", user_cache(), f"export {CACHE_VARIABLE}=/a/folder"),
        Disk("disk_output", "checkpoints", output_dir, "set output_dir, or --output-dir"),
    ]
