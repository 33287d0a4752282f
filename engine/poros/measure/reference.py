"""R0, the reference of the parity gate: stock transformers + bitsandbytes + PEFT, all resident.

It imports nothing of this project and patches nothing but bitsandbytes' repacking of weights on the
CPU, which has no gradient. It makes every cell's steps and writes a sha256 of each item.
"""

# mypy: ignore-errors

import argparse
import hashlib
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import bitsandbytes as bnb
import torch
from peft import PeftModel
from peft.tuners import lora
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM


def digest_and_zero(data):
    found = hashlib.sha256(f"{data.dtype}|{tuple(data.shape)}|".encode())
    found.update(data.reshape(-1).view(torch.uint8).numpy())
    return found.hexdigest(), not data.any()


class Recorder:
    def __init__(self, file, cell, dump):
        self.file, self.cell, self.dump, self.names = file, cell, dump or {}, None
        self.step, self.items, self.pool = 0, {}, ThreadPoolExecutor(8)

    def note(self, name, tensor):
        data = tensor.detach().to("cpu", copy=True).contiguous()
        self.items[name] = self.pool.submit(digest_and_zero, data)
        if [self.dump.get(k) for k in ("cell", "step", "item")] == [self.cell, self.step, name]:
            save_file({"item": data}, self.dump["folder"] + "/reference.safetensors")

    def end_step(self, **values):
        found = {name: future.result() for name, future in self.items.items()}
        line = {"kind": "step", "cell": self.cell, "step": self.step, **values}
        line["zeros"] = [name for name, (_, zero) in found.items() if zero]
        if self.names != list(found):
            self.names = line["names"] = list(found)
        line["digests"] = [text for text, _ in found.values()]
        print(json.dumps(line), file=self.file, flush=True)
        self.step, self.items = self.step + 1, {}


def open_model(plan, cell, device):
    settings = {name: cell[name] for name in ("attn_implementation", "dtype")}
    settings["device_map"] = {"": device}
    model = AutoModelForCausalLM.from_pretrained(cell["base_folder"], **settings)
    for module in model.modules():
        if isinstance(module, bnb.nn.Linear4bit) and device.type == "cpu":
            module.support_avx512bf16_for_cpu = False
    folder = Path(plan["folder"])
    model = PeftModel.from_pretrained(model, folder / cell["adapter"], is_trainable=True)
    expected = lora.Linear4bit if cell["precision"] == "nf4" else lora.Linear
    assert {type(m) for m in model.modules() if isinstance(m, lora.LoraLayer)} == {expected}
    params = [(name, param) for name, param in model.named_parameters() if param.requires_grad]
    for _, param in params:
        param.data = param.data.to(getattr(torch, cell["adapter_dtype"]))
    model.train().config.use_cache = cell["use_cache"]
    if cell["gradient_checkpointing"]:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    layers = model.base_model.model.get_submodule(cell["layers_path"])
    for layer in layers if cell["compile"] else ():
        layer.forward = torch.compile(layer.forward, dynamic=False)
    return model, params


def train_step(model, params, optimizer, batches, cell, note):
    num_labels = sum(int((batch["labels"][:, 1:] != -100).sum()) for batch in batches)
    losses = []
    for i, batch in enumerate(batches):
        dtype = getattr(torch, cell["autocast"] or "bfloat16")
        with torch.autocast(batch["labels"].device.type, dtype, bool(cell["autocast"])):
            loss = model(**batch, num_items_in_batch=num_labels).loss
        loss.backward()
        losses.append(float(loss.detach()))
        note(f"loss.{i}", loss)
    for name, param in params:
        note(f"grad.{name}", param.grad)
    norm = torch.nn.utils.clip_grad_norm_([p for _, p in params], cell["max_grad_norm"])
    note("grad_norm", norm)
    optimizer.step()
    for name, param in params:
        note(f"adapter.{name}", param)
        note(f"exp_avg.{name}", optimizer.state[param]["exp_avg"])
        note(f"exp_avg_sq.{name}", optimizer.state[param]["exp_avg_sq"])
    optimizer.zero_grad(set_to_none=True)
    return {"losses": losses, "grad_norm": float(norm)}


def run_cell(plan, cell, file, only_time):
    device, num_steps, step_s = torch.device(plan["device"]), cell["num_steps"], []
    num_recorded = 0 if only_time else num_steps
    model, params = open_model(plan, cell, device)
    weights, decay = [param for _, param in params], cell["weight_decay"]
    optimizer = torch.optim.AdamW(weights, weight_decay=decay, foreach=True)
    tensors = load_file(Path(plan["folder"]) / cell["batches"])
    recorder = Recorder(file, cell["name"], plan["dump"])
    for name, param in params:
        recorder.note(f"adapter.{name}", param)
    recorder.end_step()
    torch.manual_seed(cell["seed"])
    for step in range(num_recorded + cell["num_timing_steps"]):
        batches = [{} for _ in range(cell["accumulation"])]
        for key, tensor in tensors.items():
            of_step, i, name = key.split(".")
            if int(of_step) == step % num_steps:
                batches[int(i)][name] = tensor.to(device)
        optimizer.param_groups[0]["lr"] = cell["learning_rates"][step % num_steps]
        started = time.perf_counter()
        note = recorder.note if step < num_recorded else lambda *_: None
        values = train_step(model, params, optimizer, batches, cell, note)  # its float() waits
        step_s.append(time.perf_counter() - started)
        if step < num_recorded:
            recorder.end_step(**values)
    end = {"kind": "end", "cell": cell["name"], "step_s": step_s[num_recorded + 2 :]}
    if device.type == "cuda":
        end["free_bytes"], end["total_bytes"] = torch.cuda.mem_get_info()
        end["peak_reserved_bytes"] = torch.cuda.max_memory_reserved()
        end["peak_allocated_bytes"] = torch.cuda.max_memory_allocated()
    print(json.dumps(end), file=file, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("plan", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--cells", default="")
    parser.add_argument("--only-time", action="store_true")
    options = parser.parse_args()
    plan = json.loads((options.plan / "plan.json").read_text())
    torch.set_num_threads(plan["num_threads"])
    torch.use_deterministic_algorithms(not options.only_time)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 4096
    with options.output.open("w") as output:
        for cell in plan["cells"]:
            if not options.cells or cell["name"] in options.cells.split(","):
                run_cell(plan, cell, output, options.only_time)
