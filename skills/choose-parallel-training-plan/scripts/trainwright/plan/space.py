# plan/space.py without its comments
from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from trainwright.cost.layers import Network
from trainwright.errors import UserError
from trainwright.parallel import Loss, Offload, Plan, PlanError, Precision, Recompute, Schedule

LARGEST_SPACE = 50_000
LONGEST_PIPELINE = 256
LONG = 16_384


@dataclass(frozen=True, slots=True)
class Space:

    max_tp: int | None = None
    max_pp: int | None = LONGEST_PIPELINE
    max_cp: int | None = None
    max_ep: int | None = None
    micro_batches: tuple[int, ...] | None = None
    virtual_stages: tuple[int, ...] = (1, 2, 3, 4)
    schedules: tuple[Schedule, ...] = ("1f1b", "interleaved")
    recomputes: tuple[Recompute, ...] = ("none", "selective_op", "full")
    losses: tuple[Loss, ...] = ("eager", "compiled")
    offloads: tuple[Offload, ...] = ("none",)
    zero_stages: tuple[int, ...] = (0, 1, 2, 3)
    sequence_parallel: tuple[bool, ...] = (True,)

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Job:

    network: Network
    devices: int
    node: int
    seq_len: int
    global_batch: int
    precision: Precision = "bf16"
    gradient_bytes: int = 4
    compiled: bool = False
    flash_attention: bool = True
    overlap_gradients: bool = True


@dataclass(slots=True)
class Tally:

    rejected: Counter[str] = field(default_factory=Counter)

    def drop(self, reason: str, count: int = 1) -> None:
        self.rejected[reason] += count


@dataclass(frozen=True, slots=True)
class Mesh:

    tp: int
    pp: int
    cp: int
    ep: int
    dp: int


def divisors(number: int) -> list[int]:
    small = [n for n in range(1, int(number**0.5) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def meshes(job: Job, space: Space, tally: Tally) -> Iterator[Mesh]:
    heads = [kind.heads for kind in job.network.kinds]
    for tp in divisors(job.devices):
        if tp > (space.max_tp or job.node):
            continue
        if any(n % tp for n in heads):
            tally.drop(f"tp {tp} does not divide the attention heads")
            continue
        if tp > job.node or job.node % tp:
            tally.drop(f"tp {tp} does not divide a node of {job.node} devices: groups would straddle nodes")
            continue
        for pp in divisors(job.devices // tp):
            if pp > min(space.max_pp or job.network.num_layers, job.network.num_layers):
                continue
            yield from _inner_meshes(job, space, tally, tp, pp)


def _inner_meshes(job: Job, space: Space, tally: Tally, tp: int, pp: int) -> Iterator[Mesh]:
    experts = max(kind.experts for kind in job.network.kinds)
    longest = space.max_cp or (max(job.seq_len // (LONG // 2), 1) if job.seq_len >= LONG else 1)
    for cp in divisors(job.devices // (tp * pp)):
        if cp > longest:
            break
        if job.seq_len % (2 * cp) and cp > 1:
            tally.drop(f"cp {cp}: the sequence is no multiple of {2 * cp}")
            continue
        dp = job.devices // (tp * pp * cp)
        if job.global_batch % dp:
            tally.drop("the global batch is no multiple of the data-parallel size")
            continue
        for ep in divisors(experts) if experts else [1]:
            if ep > (space.max_ep or experts or 1) or (dp * cp * tp) % ep:
                continue
            yield Mesh(tp, pp, cp, ep, dp)


def sharings(mesh: Mesh, job: Job, space: Space) -> list[tuple[int, int, int]]:
    if mesh.dp * mesh.cp == 1:
        return [(0, 1, 1)]
    found = [(0, mesh.dp, 1)] if 0 in space.zero_stages else []
    stages = (1, 3) if mesh.pp > 1 else (1, 2, 3)
    found += [(stage, 1, mesh.dp) for stage in stages if stage in space.zero_stages]
    inside = job.node // (mesh.tp * mesh.cp)
    if 3 in space.zero_stages and mesh.pp == 1 and 1 < inside < mesh.dp and mesh.dp % inside == 0 and job.node % (mesh.tp * mesh.cp) == 0:
        found.append((3, mesh.dp // inside, inside))
    return found


def schedules(mesh: Mesh, job: Job, space: Space, microbatches: int) -> list[tuple[Schedule, int]]:
    if mesh.pp == 1:
        return [("none", 1)]
    found: list[tuple[Schedule, int]] = [(name, 1) for name in space.schedules if name != "interleaved"]
    if "interleaved" in space.schedules and microbatches % mesh.pp == 0:
        found += [("interleaved", v) for v in space.virtual_stages if v > 1 and job.network.num_layers % (mesh.pp * v) == 0]
    return found


def micro_batches(mesh: Mesh, job: Job, space: Space) -> list[int]:
    share = job.global_batch // mesh.dp
    wanted: Sequence[int] = space.micro_batches or (1, 2, 3, 4, 6, 8, 12, 16)
    return [n for n in wanted if n <= share and share % n == 0]


def plans(job: Job, space: Space, tally: Tally) -> Iterator[Plan]:
    for mesh in meshes(job, space, tally):
        sizes = micro_batches(mesh, job, space)
        if not sizes:
            tally.drop("no micro batch divides a rank's share of the batch")
        for micro in sizes:
            for schedule, virtual in schedules(mesh, job, space, job.global_batch // (mesh.dp * micro)):
                yield from _filled(mesh, job, space, micro, schedule, virtual)


def _filled(mesh: Mesh, job: Job, space: Space, micro: int, schedule: Schedule, virtual: int) -> Iterator[Plan]:
    for stage, replicate, shard in sharings(mesh, job, space):
        for along in space.sequence_parallel if mesh.tp > 1 else (False,):
            for recompute in space.recomputes:
                for loss in space.losses:
                    for offload in space.offloads:
                        yield Plan(
                            dp_replicate=replicate,
                            dp_shard=shard,
                            tp=mesh.tp,
                            sequence_parallel=along,
                            pp=mesh.pp,
                            cp=mesh.cp,
                            ep=mesh.ep,
                            virtual_stages=virtual,
                            micro_batch=micro,
                            schedule=schedule,
                            recompute=recompute,
                            zero_stage=stage,
                            offload=offload,
                            loss=loss,
                            precision=job.precision,
                            gradient_bytes=job.gradient_bytes,
                            compiled=job.compiled,
                            flash_attention=job.flash_attention,
                            overlap_gradients=job.overlap_gradients,
                        )


def possible(plan: Plan, network: Network) -> None:
    if odd := [kind.heads for kind in network.kinds if kind.heads % plan.tp]:
        raise PlanError(f"tp {plan.tp} does not divide {odd[0]} attention heads")
    experts = {kind.experts for kind in network.kinds if kind.experts}
    if plan.ep > 1 and not experts:
        raise PlanError(f"ep {plan.ep}: {network.name} has no experts")
    if uneven := [count for count in experts if count % plan.ep]:
        raise PlanError(f"ep {plan.ep} does not divide {uneven[0]} experts")
    if plan.layer_split is None and plan.chunks > network.num_layers:
        raise PlanError(f"{plan.chunks} stages are more than the {network.num_layers} layers; name a layer_split to leave stages empty")


def size(job: Job, space: Space) -> int:
    fixed = len(space.recomputes) * len(space.losses) * len(space.offloads)
    total = 0
    for mesh in meshes(job, space, Tally()):
        along = len(space.sequence_parallel) if mesh.tp > 1 else 1
        rows = sum(len(schedules(mesh, job, space, job.global_batch // (mesh.dp * n))) for n in micro_batches(mesh, job, space))
        total += rows * len(sharings(mesh, job, space)) * along * fixed
    return total


def judged(job: Job) -> None:
    if job.network.num_layers < 1:
        raise UserError(f"{job.network.name} has no layers; there is nothing to place")
    for said, value in (("devices", job.devices), ("sequence length", job.seq_len), ("global batch", job.global_batch)):
        if not 0 < value <= 10**7:
            raise UserError(f"{said}: {value} is not from 1 to 10,000,000")
