"""Fine-tuning from Python, the training left to Poros."""

from poros import PorosTrainer

trainer = PorosTrainer.from_pretrained("Qwen/Qwen2.5-7B-Instruct", lora_rank=16)
trainer.train("data.jsonl", steps=200, seq_len=512)
trainer.save("adapter")
