# trap: FSDP-SAVEONLY-BEST
# expect: TRN001 error --save_only_model
# expect: TRN003 warning --gradient_checkpointing
torchrun --nproc_per_node 8 train.py --output_dir out --per_device_train_batch_size 1 --fsdp full_shard --gradient_checkpointing true --save_only_model true --load_best_model_at_end true --eval_strategy steps --bf16 true
