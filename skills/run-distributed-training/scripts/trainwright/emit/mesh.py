# emit/mesh.py without its comments
from __future__ import annotations

from collections.abc import Iterator

from trainwright.emit.accelerate_file import AccelerateFile, Setting, is_count, shown

BLOCK = "parallelism_config"
REPLICATE, SHARD = f"{BLOCK}_dp_replicate_size", f"{BLOCK}_dp_shard_size"
_OTHERS = tuple(f"{BLOCK}_{axis}_size" for axis in ("tp", "cp", "sp"))
_BACKENDS = {f"{BLOCK}_cp_backend": "torch", f"{BLOCK}_sp_backend": "deepspeed"}
Problem = tuple[Setting, str]


def asked(file: AccelerateFile) -> bool:
    return isinstance(file.document.get(BLOCK), dict) and bool(file.document.get(BLOCK))


def size(file: AccelerateFile, flag: str) -> int:
    setting = file.winners.get(flag)
    text = "1" if setting is None else str(setting.value)
    return int(text) if is_count(text) else 0


def replicas(file: AccelerateFile) -> int:
    if asked(file) and file.version == 2:
        return size(file, REPLICATE)
    if file.uses_fsdp and file.version == 1 and "HYBRID" in (file.value("fsdp_sharding_strategy") or ""):
        return _machines(file)
    return 1


def _machines(file: AccelerateFile) -> int:
    return max(size(file, "num_machines"), 1)


def problems(file: AccelerateFile, ranks: int | None) -> Iterator[Problem]:
    if asked(file):
        yield from _sizes(file)
        yield from _kinds(file, ranks)
    elif file.document.get(BLOCK) not in (None, {}):
        yield Setting((BLOCK,), BLOCK, file.document.get(BLOCK)), "is no mapping of sizes"
    if replicas(file) > 1 and ranks is not None and ranks % replicas(file):
        where = file.place(REPLICATE) if asked(file) else ("num_machines",)
        yield Setting(where, "", None), f"{ranks} ranks cannot be divided by {replicas(file)}"


def _sizes(file: AccelerateFile) -> Iterator[Problem]:
    for flag in (REPLICATE, SHARD, *_OTHERS):
        setting = file.winners.get(flag)
        if setting and size(file, flag) < 1:
            yield setting, f"{shown(setting.value)} is no number of ranks: Accelerate wants a whole number from 1 on"
        elif setting and flag in _OTHERS and size(file, flag) > 1:
            yield setting, f"{shown(setting.value)} is not supported by the reference trainer yet: dp_replicate and dp_shard are"
    for flag, only in _BACKENDS.items():
        setting = file.winners.get(flag)
        if setting and setting.value != only:
            yield setting, f"{shown(setting.value)} is refused by Accelerate; write {only}"


def _kinds(file: AccelerateFile, ranks: int | None) -> Iterator[Problem]:
    replicate, shard = size(file, REPLICATE), size(file, SHARD)
    total, block = replicate * shard, Setting((BLOCK,), BLOCK, None)
    where = Setting(file.place(SHARD if SHARD in file.winners else REPLICATE), "", None)
    if file.uses_fsdp and file.version == 1 and ranks != 1:
        yield block, "Accelerate refuses it with fsdp_version 1; write fsdp_version: 2"
    elif file.uses_fsdp and shard == 1 and ranks != 1:
        yield where, "FSDP has nothing to shard over: Accelerate wants a dp_shard_size above 1"
    elif not file.uses_fsdp and shard > 1:
        yield where, f"dp_shard_size {shard} needs distributed_type FSDP with fsdp_version 2"
    if ranks is not None and total not in (ranks, 1):
        yield where, f"dp_replicate_size {replicate} x dp_shard_size {shard} = {total} is not num_processes {ranks}"


def use(file: AccelerateFile, setting: Setting) -> tuple[bool, str]:
    if setting.flag == REPLICATE:
        copies = size(file, REPLICATE)
        if not file.uses_fsdp:
            return True, f"DistributedDataParallel over {copies} ranks"
        return True, f"{copies} copies of the model, each in shards" if copies > 1 else "one copy of the model, in shards"
    if setting.flag == SHARD:
        return (
            file.uses_fsdp,
            f"each copy in shards over {size(file, SHARD)} neighbouring ranks" if file.uses_fsdp else "it is 1: nothing is cut",
        )
    return False, "its axis has one rank: nothing is asked"


def lines(copies: int, world_size: int) -> list[str]:
    if copies == 1:
        return []
    return [
        f"{BLOCK}:",
        f"  {REPLICATE}: {copies}  # copies of the model: gradients are also summed over them",
        f"  {SHARD}: {world_size // copies}  # ranks that share one copy, neighbours as on a node",
    ]
