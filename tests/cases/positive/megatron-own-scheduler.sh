# expect: SRC021 error schedule
# trap: MEG-SCHED
accelerate launch --config_file ../negative/megatron.yaml ../negative/own-scheduler.py
