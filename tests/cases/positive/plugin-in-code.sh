# expect: SRC017 info FullyShardedDataParallelPlugin
# trap: PLUGIN-MERGE
accelerate launch --config_file ../negative/fsdp2.yaml ../negative/plugin-fsdp.py
