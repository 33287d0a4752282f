"""The adapter of a finished run, asked by stock transformers and PEFT alone."""

from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

MODEL = "Qwen/Qwen2.5-7B"
ADAPTER = Path("runs/first/adapter")

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
for module in base.modules():  # on the CPU only: bitsandbytes would repack
    module.support_avx512bf16_for_cpu = False  # its weights in place at the first answer
model = PeftModel.from_pretrained(base, str(ADAPTER)).eval()

asked = tokenizer("Who are you?", return_tensors="pt").to(model.device)
with torch.no_grad():
    answer = model.generate(**asked, max_new_tokens=40, do_sample=False)
print(tokenizer.decode(answer[0, asked.input_ids.shape[1] :], skip_special_tokens=True))
