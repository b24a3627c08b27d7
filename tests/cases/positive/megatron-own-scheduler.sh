# expect: SRC021 error get_scheduler
# trap: MEG-SCHED
accelerate launch --config_file ../negative/megatron.yaml ../negative/own-scheduler.py
