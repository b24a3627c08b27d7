# expect: SRC021 error main_training_function
# trap: TPU-MAINFN
accelerate launch --config_file ../negative/tpu-main.yaml ../negative/own-scheduler.py
