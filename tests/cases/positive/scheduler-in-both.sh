# expect: SRC021 error scheduler
# trap: ADS-SCHED-BOTH
accelerate launch --config_file ../negative/deepspeed-scheduler.yaml ../negative/dummy-optimizer.py
