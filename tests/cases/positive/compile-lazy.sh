# expect: JOB020 error PT_HPU_LAZY_MODE
# trap: DYN-HPU-LAZY
export PT_HPU_LAZY_MODE=1
accelerate launch --config_file ../negative/compile-hpu.yaml train.py
