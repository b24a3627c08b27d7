# expect: SRC017 warning mixed_precision
# trap: MP-PREC-ORDER
accelerate launch --config_file ../negative/fsdp2.yaml ../negative/precision-fp16.py
