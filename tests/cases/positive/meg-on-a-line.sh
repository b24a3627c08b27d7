# trap: MEG-SEQ-CP
# expect: MEG001 error --seq-length
# expect: MEG002 warning --sequence-parallel
torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 1 --pipeline-model-parallel-size 1 --context-parallel-size 8 --seq-length 4104 --sequence-parallel
