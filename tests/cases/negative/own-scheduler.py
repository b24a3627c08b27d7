import torch
from accelerate import Accelerator
from transformers import AutoModelForCausalLM, get_scheduler

accelerator = Accelerator()
model = AutoModelForCausalLM.from_pretrained("gpt2")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
schedule = get_scheduler("linear", optimizer, num_warmup_steps=10, num_training_steps=100)
model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
