# possible.py without its comments
from __future__ import annotations

import dataclasses

from trainwright.errors import UserError
from trainwright.job import Job
from trainwright.model import ModelSpec
from trainwright.strategy import Strategy


def possible(spec: ModelSpec, strategy: Strategy, job: Job) -> None:
    ranks = job.world_size
    if strategy.kind == "single" and ranks > 1:
        raise UserError(f"strategy single on {ranks} ranks would train {ranks} unconnected models; use ddp or fsdp, or 1 rank")
    if ranks % strategy.replicas:
        raise UserError(
            f"{strategy.name} asks for {strategy.replicas} replicas, and {ranks} ranks cannot be divided by {strategy.replicas}"
        )
    if strategy.kind == "fsdp":
        for experts in sorted(_experts(spec)):
            if experts % (ranks // strategy.replicas):
                shards = ranks // strategy.replicas
                said = f"{spec.name} has {experts} experts in a layer, and they cannot be divided by {shards} ranks"
                raise UserError(f"{said}: some ranks would hold fewer; take a number of ranks that divides {experts}")
    if strategy.kind != "ddp" and (own := _of_ddp(job)):
        raise UserError(f"{own[0]} is an option of DDP, and the backend config asks for {strategy.name}; leave it out, or use ddp")
    if job.comm_hook == "bf16" and job.device == "cpu":
        raise UserError("comm_hook bf16 needs NCCL or XCCL, and ranks on CPU speak gloo; take fp16 or none")
    if job.decay != "all" and strategy.kind == "zero":
        raise UserError("decay matrices needs two groups of parameters, and the trainer gives ZeRO one; take decay all, or FSDP")
    if job.compile != "none" and strategy.zero_stage == 3:
        raise UserError("compile with ZeRO stage 3 breaks at each of its hooks; take stage 2 or FSDP, or compile none")


def _experts(spec: ModelSpec) -> set[int]:
    return {run.block.mlp.num for run in spec.runs if hasattr(run.block.mlp, "num")}


def _of_ddp(job: Job) -> list[str]:
    asked = {field.name: getattr(job, field.name) for field in dataclasses.fields(Job) if getattr(job, field.name) != field.default}
    return [name for name in ("static_graph", "find_unused_parameters", "bucket_mb", "comm_hook") if name in asked]
