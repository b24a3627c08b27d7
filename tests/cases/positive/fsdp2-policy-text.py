# expect: SRC016 error mixed_precision_policy
# trap: FSDP-MP-DICT
from accelerate import FullyShardedDataParallelPlugin

POLICY = {"param_dtype": "bf16", "reduce_dtype": "bf16"}
plugin = FullyShardedDataParallelPlugin(fsdp_version=2, mixed_precision_policy=POLICY)
