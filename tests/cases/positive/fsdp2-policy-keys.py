# expect: SRC016 error mixed_precision_policy
# trap: FSDP-MP-DICT
import torch
from accelerate import Accelerator, FullyShardedDataParallelPlugin

plugin = FullyShardedDataParallelPlugin(
    fsdp_version=2,
    mixed_precision_policy={"param_dtype": torch.bfloat16, "buffer_dtype": torch.bfloat16},
)
accelerator = Accelerator(fsdp_plugin=plugin)
