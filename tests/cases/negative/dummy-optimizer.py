import torch
from accelerate import Accelerator
from accelerate.utils import DummyOptim

accelerator = Accelerator()
model = torch.nn.Linear(2, 2)
optimizer = DummyOptim(model.parameters(), lr=1e-4)
scheduler = torch.optim.lr_scheduler.LinearLR(optimizer)
model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)
