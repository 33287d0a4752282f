"""The demo's streamed step against a resident step with checkpointing, in pairs, on the CPU.

python docs/validation/cpu_step_bar.py OUT.json [--pairs 40] [--threads N] [--profile]

Both in one process, in turn, on the demo's model, settings and batches, with the same determinism
and threads; who begins alternates from pair to pair. Resident: stock transformers + bitsandbytes +
PEFT, opened by the gate's own reference, with gradient checkpointing. Time is the processor time of
the process, since the machine may have other work; wall time stands beside it. With several threads
set OMP_WAIT_POLICY=PASSIVE, or threads that wait for a busy machine count as work. After every pair
losses and adapters must be the same bits.
"""

import argparse
import dataclasses
import importlib.util
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from poros.demo.demo import demo_config
from poros.demo.model import demo_model_folder
from poros.measure import prepare, streamed_arm
from poros.measure.arms import REFERENCE_SCRIPT
from poros.measure.artifacts import environment
from poros.measure.fingerprint import same_bits
from poros.measure.request import Request
from poros.training.determinism import enforce_determinism

NUM_UNTIMED = 3


def say(line):
    sys.stdout.write(f"{line}\n")


def without_folder(argument):
    return Path(argument).name if "/" in argument else argument


def reference():
    """The gate's reference, which is a script outside any package."""
    spec = importlib.util.spec_from_file_location("reference", REFERENCE_SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_plan(folder, num_threads, num_steps):
    """The demo's config as one cell, without a resume."""
    config = demo_config(demo_model_folder(lambda event: None), folder / "out")
    request = Request(
        target="config", folder=str(folder), num_threads=num_threads, num_steps=num_steps,
        config=config.model_dump(mode="json"), quick=True,
    )  # fmt: skip
    return prepare.prepare(request)


class Resident:
    """Stock, with gradient checkpointing."""

    def __init__(self, plan, cell):
        cell = dataclasses.asdict(dataclasses.replace(cell, gradient_checkpointing=True))
        self.module, self.cell = reference(), cell
        settings = {"folder": str(plan.folder), "device": plan.device}
        self.model, self.params = self.module.open_model(settings, cell, torch.device("cpu"))
        weights = [weight for _, weight in self.params]
        decay = cell["weight_decay"]
        self.optimizer = torch.optim.AdamW(weights, weight_decay=decay, foreach=True)

    def step(self, batches, rate):
        self.optimizer.param_groups[0]["lr"] = rate
        named = [b.model_inputs(torch.device("cpu")) | {"labels": b.labels_BT} for b in batches]
        values = self.module.train_step(
            self.model, self.params, self.optimizer, named, self.cell, lambda *_: None
        )
        return sum(values["losses"]), values["grad_norm"]


class Streamed:
    """The product."""

    def __init__(self, plan, cell):
        self.cell = cell
        self.streamed = streamed_arm.open_streamed(plan, cell, torch.device("cpu"))
        self.params = self.streamed.params

    def step(self, batches, rate):
        values = streamed_arm.make_step(self.streamed, batches, self.cell, rate)
        return values["loss"], values["grad_norm"]


class Timed:
    """An arm with its own random state and its times."""

    def __init__(self, arm, seed):
        self.arm, self.cpu_s, self.wall_s = arm, [], []
        torch.manual_seed(seed)
        self.random = torch.get_rng_state()

    def step(self, batches, rate):
        torch.set_rng_state(self.random)
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        values = self.arm.step(batches, rate)
        self.wall_s.append(time.perf_counter() - wall_s)
        self.cpu_s.append(time.process_time() - cpu_s)
        self.random = torch.get_rng_state()
        return values

    def record(self):
        kept = {"cpu_s": self.cpu_s[NUM_UNTIMED:], "wall_s": self.wall_s[NUM_UNTIMED:]}
        return {f"median_{k}": statistics.median(v) for k, v in kept.items()} | kept


def compare(arms, plan, cell, num_pairs, keep):
    """Step in turn and keep what was found after every pair."""
    equal = True
    for pair in range(NUM_UNTIMED + num_pairs):
        step = pair % cell.num_steps
        batches = streamed_arm.read_batches(plan, cell, step)
        order = sorted(arms) if pair % 2 else sorted(arms, reverse=True)
        values = [arms[name].step(batches, cell.learning_rates[step]) for name in order]
        equal = equal and values[0] == values[1] and same_weights(arms)
        if pair >= NUM_UNTIMED:
            keep(equal)


def same_weights(arms):
    """Whether both have the same adapters, to the byte."""
    sides = [[weight for _, weight in timed.arm.params] for timed in arms.values()]
    return all(same_bits(a, b) for a, b in zip(*sides, strict=True))


def show_profile(timed, plan, cell):
    """What a step of one arm spends its time on."""
    batches = streamed_arm.read_batches(plan, cell, 0)
    with profile(activities=[ProfilerActivity.CPU]) as found:
        timed.step(batches, cell.learning_rates[0])
    say(found.key_averages().table(sort_by="self_cpu_time_total", row_limit=25))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("output", type=Path)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    enforce_determinism(torch.device("cpu"), num_threads=options.threads)
    with tempfile.TemporaryDirectory() as name:
        plan = make_plan(Path(name), options.threads, 20)
        streamed_arm.set_up(plan)
        (cell,) = plan.cells
        kinds = {"resident": Resident, "streamed": Streamed}
        arms = {name: Timed(kind(plan, cell), cell.seed) for name, kind in kinds.items()}
        about = {
            "what": "the demo's step, streamed and resident with gradient checkpointing, in turn",
            "command": "docs/validation/cpu_step_bar.py "
            + " ".join(map(without_folder, sys.argv[1:])),
            "environment": environment(),
            "num_threads": options.threads,
        }

        def keep(equal):
            record = about | {"same_bits": equal} | result(arms)
            options.output.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")

        compare(arms, plan, cell, options.pairs, keep)
        if options.profile:
            for timed in arms.values():
                show_profile(timed, plan, cell)
    tell(json.loads(options.output.read_text(encoding="utf-8")))


def result(arms):
    """The times, and the ratio that they are about."""
    found = {name: timed.record() for name, timed in arms.items()}
    pairs = zip(found["streamed"]["cpu_s"], found["resident"]["cpu_s"], strict=True)
    ratios = [streamed / resident for streamed, resident in pairs]
    return {
        "num_pairs": len(ratios),
        "median_ratio_of_pairs_cpu": statistics.median(ratios),
        "arms": found,
    }


def tell(record):
    """The record in three lines."""
    ratio = record["median_ratio_of_pairs_cpu"]
    say(f"same bits: {record['same_bits']}; streamed / resident, processor time: {ratio:.3f}")
    for name, values in record["arms"].items():
        say(f"{name}: {values['median_cpu_s']:.3f} s cpu, {values['median_wall_s']:.3f} s wall")


if __name__ == "__main__":
    main()
