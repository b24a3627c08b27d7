import torch
import torch.distributed as dist

dist.init_process_group("nccl")
device = torch.device("cuda")
model = torch.nn.Linear(8, 8).to(device)
