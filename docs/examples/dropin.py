"""A PEFT script of the usual kind, with one line of Poros in it."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

import poros

MODEL = "Qwen/Qwen2.5-7B-Instruct"

poros.enforce_determinism()
nf4 = BitsAndBytesConfig(
    load_in_4bit=True,
    bnb_4bit_quant_type="nf4",
    bnb_4bit_use_double_quant=True,
    bnb_4bit_compute_dtype=torch.bfloat16,
)
tokenizer = AutoTokenizer.from_pretrained(MODEL)
base = AutoModelForCausalLM.from_pretrained(
    MODEL, quantization_config=nf4, dtype=torch.bfloat16, device_map="auto"
)
model = get_peft_model(base, LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM"))

model = poros.prepare(model)  # the line

optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-4)
ids = tokenizer("A lighthouse keeper talks like one.", return_tensors="pt").input_ids
ids = ids.to(model.device)
for step in range(3):
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(f"step {step + 1}: loss {loss.item():.4f}")
model.save_pretrained("adapter")
