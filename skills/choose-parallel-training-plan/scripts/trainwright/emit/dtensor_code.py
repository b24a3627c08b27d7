# emit/dtensor_code.py without its comments
from __future__ import annotations

CODE = r'''SIZES = {"pp": PP, "dp_replicate": DP_REPLICATE, "dp_shard": DP_SHARD, "cp": CP, "tp": TP}


def build_mesh(device_type: str) -> DeviceMesh:
    """The mesh of all ranks, outermost axis first; torch.distributed has to be initialised."""
    return init_device_mesh(device_type, tuple(SIZES.values()), mesh_dim_names=tuple(SIZES))


def chunks_of(stage: int) -> list[range]:
    """The layers of each chunk of a pipeline stage: chunks go around the stages."""
    split = LAYER_SPLIT or (LAYERS,)
    starts = [sum(split[:i]) for i in range(len(split))]
    return [range(starts[i], starts[i] + split[i]) for i in range(stage, len(split), PP)]


def pipeline_schedule(stages, loss_fn):
    """The schedule of this rank's PipelineStages (one a chunk)."""
    from torch.distributed import pipelining

    if SCHEDULE == "interleaved":
        return pipelining.ScheduleInterleaved1F1B(stages, MICROBATCHES, loss_fn)
    kind = pipelining.ScheduleGPipe if SCHEDULE == "gpipe" else pipelining.Schedule1F1B
    return kind(stages[0], MICROBATCHES, loss_fn)


def loss_function():
    return torch.compile(nn.functional.cross_entropy) if COMPILED_LOSS else nn.functional.cross_entropy


def tensor_parallel(model: nn.Module, mesh: DeviceMesh) -> None:
    """Cut a decoder with Llama's names (model.layers.N.self_attn, .mlp) along the axis tp; its forward has to be called without a cache."""
    along = Shard(1) if SEQUENCE_PARALLEL else Replicate()
    layer_plan = {
        "self_attn.q_proj": ColwiseParallel(),
        "self_attn.k_proj": ColwiseParallel(),
        "self_attn.v_proj": ColwiseParallel(),
        "self_attn.o_proj": RowwiseParallel(output_layouts=along),
        "mlp.gate_proj": ColwiseParallel(),
        "mlp.up_proj": ColwiseParallel(),
        "mlp.down_proj": RowwiseParallel(output_layouts=along),
    }
    if SEQUENCE_PARALLEL:
        whole = {"hidden_states": Replicate()}
        layer_plan |= {
            "input_layernorm": SequenceParallel(use_local_output=True),
            "post_attention_layernorm": SequenceParallel(use_local_output=True),
            "self_attn": PrepareModuleInput(input_kwarg_layouts={"hidden_states": Shard(1)}, desired_input_kwarg_layouts=whole),
            "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        }
    body = model.model
    for layer in body.layers:
        parallelize_module(layer, mesh["tp"], layer_plan)
    root_plan = {"lm_head": ColwiseParallel(output_layouts=Replicate())}
    if SEQUENCE_PARALLEL:  # the stream is cut at the first layer and whole again at the last norm
        whole, cut = (Replicate(),), (Shard(1),)
        root_plan["model.layers.0"] = PrepareModuleInput(input_layouts=whole, desired_input_layouts=cut, use_local_output=True)
        root_plan["model.norm"] = PrepareModuleInput(input_layouts=cut, desired_input_layouts=whole, use_local_output=True)
    parallelize_module(model, mesh["tp"], root_plan)


def recomputed(layer: nn.Module) -> nn.Module:
    """The layer with what its backward computes again."""
    if RECOMPUTE == "full":
        return checkpoint_wrapper(layer)
    if RECOMPUTE == "selective_op":
        return checkpoint_wrapper(layer, context_fn=partial(create_selective_checkpoint_contexts, _every_second_product()))
    return layer


def _every_second_product():
    seen = {"forward": 0, "recompute": 0}
    kept = {torch.ops.aten._scaled_dot_product_flash_attention.default, torch.ops.aten._scaled_dot_product_efficient_attention.default}

    def policy(context, function, *arguments, **options):
        mode = "recompute" if context.is_recompute else "forward"
        product = function in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        seen[mode] += product
        keep = function in kept or (product and seen[mode] % 2 == 1)
        return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

    return policy


def parallelize(model: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Tensor parallelism, recompute, compilation and sharding, in this order, on one stage's part of the model."""
    if TP > 1:
        tensor_parallel(model, mesh)
    if RECOMPUTE == "budget":
        torch._functorch.config.activation_memory_budget = ACTIVATION_BUDGET
    layers = model.model.layers
    for name, layer in list(layers.named_children()):
        layers.register_module(name, recomputed(layer))
    if COMPILED:
        for layer in layers:
            layer.compile()
    if FULLY_SHARDED:
        options = {"mesh": shard_mesh(mesh), "reshard_after_forward": RESHARD_AFTER_FORWARD, "mp_policy": mixed_precision()}
        for layer in layers:
            fully_shard(layer, **options)
        return fully_shard(model, **options)
    if DP_REPLICATE > 1:
        return nn.parallel.DistributedDataParallel(model, device_mesh=mesh["dp_replicate"])
    return model


def shard_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """The axes that weights are sharded along: copies first where there are any."""
    if CP > 1:
        return mesh["dp_shard", "cp"]._flatten("dp_shard_cp")
    return mesh["dp_replicate", "dp_shard"] if DP_REPLICATE > 1 else mesh["dp_shard"]


def mixed_precision() -> MixedPrecisionPolicy:
    if PRECISION == "fp32":
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32 if GRADIENT_BYTES == 4 else torch.bfloat16)


def context_parallel_region(mesh: DeviceMesh, buffers):
    """The context in which a step runs when sequences are cut; `buffers` are [batch, sequence, ...] tensors."""
    from torch.distributed.tensor.experimental import context_parallel

    return context_parallel(mesh["cp"], buffers=buffers, buffer_seq_dims=[1] * len(buffers))
'''
