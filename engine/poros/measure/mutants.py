"""The gate's negative controls: each breaks one protection and must turn the gate red in its place.

`python -m poros.measure.mutants PLAN_FOLDER OUTPUT.json`. A mutant that survives fails the gate,
and so does one that is red elsewhere than what it breaks implies.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from poros.measure import mutant_bytes as data
from poros.measure import mutant_patches as patches
from poros.measure.boundary_mutants import BOUNDARIES_ON_HOST, BOUNDARY_MUTANTS
from poros.measure.end_mutants import END_MUTANTS, with_ends_on_host
from poros.measure.live_arm import with_a_live_model
from poros.measure.live_mutants import LIVE_MUTANTS
from poros.measure.mutant_bench import (
    NUM_STEPS,
    Bench,
    Mutant,
    Setting,
    first_difference,
    not_applicable,
    try_mutant,
)
from poros.measure.plan import Cell, Plan, read_plan
from poros.measure.records import ArmRecord
from poros.measure.resident_mutants import RESIDENT_MUTANTS, TWO_RESIDENT
from poros.measure.shortage_mutants import RUNS_OUT, SHORTAGE_MUTANTS
from poros.measure.side_mutants import SIDE_MUTANTS, plan_with_side_tensors
from poros.measure.state_mutants import ADAPTERS_ON_HOST, MOMENTS_ON_HOST, STATE_MUTANTS
from poros.measure.streamed_arm import set_up
from poros.measure.tier_mutants import TIER_MUTANTS, no_copy_back, staged_tier

PLAIN = Setting()
CACHED = Setting(use_cache=True, plain=True)
AUTOCAST = Setting(autocast="bfloat16")
EVAL_BETWEEN = Setting(disturb="eval")
MATH_BETWEEN = Setting(disturb="math")
COPY_FAILS = Setting(disturb="copy")
TIED = Setting(disturb="tied")
COMPILED = Setting(compile=True, plain=True)

DISTURBED = {
    EVAL_BETWEEN: "eval between forward and backward",
    MATH_BETWEEN: "math between forward and backward",
    COPY_FAILS: "a step made again after a copy failed",
    MOMENTS_ON_HOST: "moments on the host",
    ADAPTERS_ON_HOST: "adapters on the host",
    TWO_RESIDENT: "two blocks resident",
    BOUNDARIES_ON_HOST: "hidden states on the host",
    RUNS_OUT: "a step made again after memory ran out",
}
"""What must change nothing, with every protection on."""

WITH_BIASES = "qwen2"

MAX_GRAD_NORM = 0.01
"""Small, so that the clip always has something to do."""

RESUMED = "resumed"

LOSSES = r"^loss\."
GRADS = r"^grad\."
FIRST_GRAD = r"^grad\..*layers\.0\."


def _layer(numbers: str) -> str:
    return rf"^grad\..*layers\.{numbers}\."


def no_biases(bench: Bench) -> str:
    """Nothing for a lost bias to change."""
    return "" if bench.has_biases else "the linears have no biases"


def nothing_compiled(bench: Bench) -> str:
    """Compiling takes a minute, and concerns only runs that do it."""
    compiled = any(cell.compile for cell in bench.plan.cells)
    return "" if compiled else "no cell of this run compiles its layers"


def no_other_kernels(bench: Bench) -> str:
    """Only for scaled dot product attention does torch choose among kernels."""
    chosen = bench.cell.attn_implementation
    return "" if chosen == "sdpa" else f"{chosen} attention has no other kernels"


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "slot recycled under stock MatMul4Bit's graph", patches.forwards_own_graph,
        first=FIRST_GRAD, equal=(LOSSES, _layer("{two_last}")),
        differ=(_layer("{below_last_three}"),),
    ),
    Mutant(
        "random state not restored for the recompute", patches.random_state_kept,
        first=r"^loss\.1", equal=(r"^loss\.0",), differ=(GRADS,),
    ),
    Mutant(
        "random state not put back after the recompute", patches.random_state_not_put_back,
        first=r"^loss\.1", equal=(r"^loss\.0",),
    ),
    Mutant(
        "KV cache kept inside blocks", patches.cache_kept, CACHED,
        first=FIRST_GRAD, equal=(LOSSES,), differ=(_layer("0"),),
    ),
    Mutant(
        "autocast not entered for the recompute", patches.autocast_not_entered, AUTOCAST,
        first=FIRST_GRAD, equal=(LOSSES,), differ=(_layer("{below_last_three}"),),
    ),
    Mutant(
        "training flag not restored for the recompute", patches.training_not_restored,
        EVAL_BETWEEN, first=FIRST_GRAD, equal=(LOSSES,), differ=(GRADS,),
    ),
    Mutant(
        "attention kernels not restored for the recompute", patches.attention_not_restored,
        MATH_BETWEEN, first=FIRST_GRAD, equal=(LOSSES,), left_out=no_other_kernels,
    ),
    Mutant(
        "forward without grad under compile", patches.forward_without_grad, COMPILED,
        first=r"^loss\.0", left_out=nothing_compiled,
    ),
    Mutant(
        "neighbour's bytes loaded ahead", patches.wrong_bytes_forward, first=r"^loss\.0",
        differ=(LOSSES, GRADS),
    ),
    Mutant(
        "neighbour's bytes loaded on the way back", patches.wrong_bytes_backward,
        first=FIRST_GRAD, equal=(LOSSES, _layer("{above_middle}")),
        differ=(_layer("{below_middle}"),), left_out=no_copy_back,
    ),
    Mutant(
        "slot freed before the forward used it", patches.freed_before_forward, first=r"^loss\.0",
        differ=(LOSSES, GRADS),
    ),
    Mutant(
        "slot freed before the block's backward ended", patches.freed_before_backward,
        first=FIRST_GRAD,
        equal=(LOSSES, _layer("{above_middle}"), r"^grad\..*layers\.{middle}\..*down_proj"),
        differ=(_layer("{below_middle}"),),
    ),
    Mutant(
        "slot written from outside and not forgotten", patches.written_outside, step=2,
        first=r"^loss\.0", equal=(r"^loss\.1",), differ=(r"^loss\.0", GRADS),
    ),
    Mutant(
        "slot claims its block though the copy failed", patches.claimed_before_copied, COPY_FAILS,
        first=r"^loss\.0", equal=(r"^loss\.1",), differ=(GRADS,),
    ),
    Mutant(
        "weight under two names loses half its gradient", patches.stands_in_once, TIED,
        first=r"^grad\..*layers\.{middle}\..*lora_A",
        equal=(LOSSES, _layer("{above_middle}"), _layer("{below_middle}"), r"^grad\..*lora_B"),
    ),
    Mutant("micro-batches in another order", patches.reversed_order, first=r"^loss\.0"),
    Mutant("one nibble of one weight", data.one_nibble, first=r"^loss\.0", differ=(LOSSES,)),
    Mutant("one absmax one step up", data.absmax_up, first=r"^loss\.0", differ=(LOSSES,)),
    # So small a step that another micro-batch's loss may round to the same number (on CUDA it did).
    Mutant("nested absmax one ULP up", data.nested_absmax_up, first=r"^loss\.0"),
    Mutant("offset dropped", data.offset_dropped, first=r"^loss\.0", differ=(LOSSES, GRADS)),
    Mutant(
        "bias lost", data.bias_lost, first=r"^loss\.0", differ=(LOSSES,), left_out=no_biases
    ),
    Mutant("two blocks swapped", data.blocks_swapped, first=r"^loss\.0", differ=(LOSSES, GRADS)),
    Mutant(
        "clip left out", patches.clip_left_out, first=r"^adapter\.",
        equal=(LOSSES, GRADS, "^grad_norm$"), differ=(r"^exp_avg\.", r"^exp_avg_sq\."),
    ),
    Mutant(
        "epsilon 1e-7 for 1e-8", patches.other_epsilon, first=r"^adapter\.",
        equal=(LOSSES, GRADS, "^grad_norm$", r"^exp_avg\.", r"^exp_avg_sq\."),
    ),
    Mutant(
        "loss normalised by each micro-batch", patches.normalised_per_micro_batch,
        first=r"^loss\.0", differ=(LOSSES, GRADS),
    ),
    Mutant(
        "only the dtype of a gradient norm differs", patches.nothing,
        Setting(note=lambda name, t: t.double() if name == "grad_norm" else t),
        first=r"^grad_norm$", equal=(LOSSES, GRADS, r"^adapter\.", r"^exp_avg"),
    ),
    Mutant(
        "-0.0 for 0.0", patches.nothing, Setting(note=lambda name, t: _zero(name, t, -0.0)),
        first=r"^loss\.0", equal=(r"^loss\.1", GRADS, "^grad_norm$", r"^adapter\.", r"^exp_avg"),
    ),
    Mutant(
        "nothing is compared", patches.nothing, Setting(note=lambda _, __: None), word="REFUSED"
    ),
    Mutant(
        "one optimizer moment lost at resume", patches.moment_lost, step=NUM_STEPS + 1,
        first=r"^adapter\.", equal=(LOSSES, GRADS, "^grad_norm$", r"^exp_avg_sq\."), resumed=True,
    ),
    Mutant(
        "optimizer's step count lost at resume", patches.step_count_lost, step=NUM_STEPS + 1,
        first=r"^adapter\.", equal=(LOSSES, GRADS, "^grad_norm$", r"^exp_avg"), resumed=True,
    ),
    Mutant(
        "resume one batch late", patches.one_batch_late, step=NUM_STEPS + 1, first=r"^loss\.0",
        differ=(LOSSES, GRADS), resumed=True,
    ),
    Mutant(
        "random state one draw late at resume", patches.drawn_once_more, step=NUM_STEPS + 1,
        first=r"^loss\.0", differ=(LOSSES, GRADS), resumed=True,
    ),
    Mutant("base resident, nothing streamed", patches.resident_base, word="REFUSED"),
    *END_MUTANTS,
    *STATE_MUTANTS,
    *RESIDENT_MUTANTS,
    *BOUNDARY_MUTANTS,
    *SHORTAGE_MUTANTS,
    *TIER_MUTANTS,
    *LIVE_MUTANTS,
)  # fmt: skip


def _zero(name: str, tensor: Tensor, zero: float) -> Tensor:
    return torch.full_like(tensor, zero) if name == "loss.0" else tensor


_ZERO_BASELINE = Setting(note=lambda name, t: _zero(name, t, 0.0))


def baseline_of(mutant: Mutant) -> Setting:
    """The run that the mutant must differ from: the same, with its protection on."""
    if mutant.name == "-0.0 for 0.0":
        return _ZERO_BASELINE
    if mutant.word == "FAIL" and mutant.setting.note is not None:
        return PLAIN
    return mutant.setting


def run_mutants(plan: Plan, *, chosen: Sequence[Mutant] = MUTANTS) -> list[dict[str, Any]]:
    """Try mutants on the plan's first cell; what was found, one record a mutant.

    The protections themselves are tried too: with them on, the same disturbances change nothing.
    A mutant that can't show on that cell is not red: its record says why, and counts apart.
    That of biases is then tried on the first cell of a family that has some, those of head and
    embeddings on the first cell with these on the host.
    """
    bench = _bench(plan, plan.cells[0])
    baselines: dict[Setting | str, ArmRecord] = {}
    biased = next((cell for cell in plan.cells if cell.model == WITH_BIASES), None)
    others = [m for m in chosen if biased and m.left_out is no_biases and no_biases(bench)]
    ends = [mutant for mutant in chosen if mutant.ends]
    staged = [mutant for mutant in chosen if mutant.tier]
    live = [mutant for mutant in chosen if mutant.live]
    first = [m for m in chosen if m not in [*others, *ends, *staged, *live]]
    found = _tried(bench, first, baselines)
    found += _protections(bench, baselines)
    if others and biased is not None:
        found += _tried(_bench(plan, biased), others, {})
    if ends:
        hosted = with_ends_on_host(plan.cells[0])
        found += _tried_elsewhere(bench, hosted, ends, "head and embeddings on the host")
    if staged:
        tier = staged_tier(plan.cells[0])
        found += _tried_elsewhere(bench, plan.cells[0], staged, "blocks that are staged", tier)
    if live:
        prepared = with_a_live_model(plan.cells[0])
        found += _tried_elsewhere(bench, prepared, live, "a live model, prepared")
    return found


def _tried_elsewhere(
    bench: Bench, cell: Cell, chosen: Sequence[Mutant], what: str, host_tier: str = "auto"
) -> list[dict[str, Any]]:
    """Mutants of a cell that has its bytes elsewhere, and that this alone changes nothing."""
    other = _bench(bench.plan, cell, host_tier)
    baseline = other.run(PLAIN)
    found = _tried(other, chosen, {PLAIN: baseline})
    where = first_difference(bench.run(PLAIN), baseline)
    return [*found, _protected(what, where)]


def _bench(plan: Plan, cell: Cell, host_tier: str = "auto") -> Bench:
    # Blocks in memory, but for the mutants of staging: what is in files can't be broken there.
    cell = dataclasses.replace(
        cell, name="mutants", block_size=1, num_slots=2, resident=(), max_grad_norm=MAX_GRAD_NORM,
        host_tier=host_tier,
    )  # fmt: skip
    return Bench.open(plan, cell)


def _tried(
    bench: Bench, chosen: Sequence[Mutant], baselines: dict[Setting | str, ArmRecord]
) -> list[dict[str, Any]]:
    found = []
    for mutant in chosen:
        reason = mutant.left_out(bench)
        if reason:
            found.append(not_applicable(mutant, reason))
            continue
        key = RESUMED if mutant.resumed else baseline_of(mutant)
        if key not in baselines:
            baselines[key] = bench.save() if isinstance(key, str) else bench.run(key)
        started_s = time.monotonic()
        record = try_mutant(bench, mutant, baselines[key])
        found.append(record | {"duration_s": time.monotonic() - started_s})
    return found


def _protections(
    bench: Bench, baselines: dict[Setting | str, ArmRecord]
) -> Iterator[dict[str, Any]]:
    disturbed = {
        name: baselines[setting] for setting, name in DISTURBED.items() if setting in baselines
    }
    if disturbed:
        plain = bench.run(PLAIN)  # anew: it also shows that every mutant was put back
        for name, baseline in disturbed.items():
            yield _protected(name, first_difference(plain, baseline))
    if RESUMED in baselines:
        yield _protected("a resume", first_difference(baselines[RESUMED], bench.resume()))


def _protected(against: str, where: tuple[int, str] | None) -> dict[str, Any]:
    found = "no difference" if where is None else f"step {where[0]}, {where[1]}"
    return {
        "name": f"(control) {against}",
        "ok": where is None,
        "predicted": "no difference",
        "found": found,
    }


def main() -> None:
    """Try all mutants on a plan's first cell; of families, those of side tensors."""
    parser = argparse.ArgumentParser()
    parser.add_argument("plan", type=Path)
    parser.add_argument("output", type=Path)
    options = parser.parse_args()
    plan = read_plan(options.plan)
    set_up(plan)
    if plan.target == "family":
        records = run_mutants(plan_with_side_tensors(plan), chosen=SIDE_MUTANTS)
    else:
        records = run_mutants(plan)
    options.output.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
