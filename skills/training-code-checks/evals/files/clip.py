import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin

plugin = FullyShardedDataParallelPlugin(fsdp_version=1, sharding_strategy="FULL_SHARD")
accelerator = Accelerator(fsdp_plugin=plugin, mixed_precision="bf16", gradient_accumulation=4)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(model.parameters())
model, optimizer = accelerator.prepare(model, optimizer)
for _ in range(10):
    accelerator.backward(model(torch.rand(4, 8)).sum())
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
