# check/rules/job_environment.py without its comments
from __future__ import annotations

from collections.abc import Iterator

from trainwright.check.subject import Job
from trainwright.report import Fix, Severity
from trainwright.rules import Hit, rule


@rule(
    "JOB020",
    Severity.ERROR,
    Job,
    fails_at="engine start",
    checked="source",
    source="optimum-habana-training-args",
    covers=("DYN-HPU-LAZY",),
)
def compile_in_lazy_mode(job: Job) -> Iterator[Hit]:
    """torch.compile for Gaudi (hpu_backend) with PT_HPU_LAZY_MODE=1: the two exclude each other.

    Lazy mode gathers operations itself, and the compiler's front end stops beside it ("Dynamo and lazy are mutually exclusive").

    Bad `job.sh`:

        export PT_HPU_LAZY_MODE=1
        accelerate launch --config_file acc.yaml train.py
    Bad `acc.yaml`:

        distributed_type: MULTI_HPU
        num_processes: 8
        dynamo_config: {dynamo_backend: HPU_BACKEND, dynamo_use_dynamic: true}

    Good `job.sh`:

        export PT_HPU_LAZY_MODE=0
        accelerate launch --config_file acc.yaml train.py
    Good `acc.yaml`:

        distributed_type: MULTI_HPU
        num_processes: 8
        dynamo_config: {dynamo_backend: HPU_BACKEND, dynamo_use_dynamic: true}
    """
    if job.environment.get("PT_HPU_LAZY_MODE") != "1":
        return
    by_file = any(str(config.value("dynamo_backend")).upper() == "HPU_BACKEND" for config in job.accelerate)
    if by_file or any("hpu_backend" in source.text and "torch.compile" in source.text for source in job.sources):
        fix = Fix({"PT_HPU_LAZY_MODE": "0"})
        yield Hit(
            "PT_HPU_LAZY_MODE=1 with torch.compile (hpu_backend): they exclude each other",
            job.places.get("PT_HPU_LAZY_MODE"),
            "PT_HPU_LAZY_MODE",
            fix,
        )


@rule(
    "JOB021",
    Severity.ERROR,
    Job,
    fails_at="engine start",
    checked="source",
    source="accelerate-1.15.0-accelerator",
    covers=("HPU-FP16", "HPU-OFFLOAD-LAZY"),
)
def gaudi_refuses(job: Job) -> Iterator[Hit]:
    """A Trainer's job on Gaudi that asks for fp16, or offloads its optimizer in lazy mode: both are refused.

    GaudiTrainingArguments takes bf16 alone. DeepSpeed's offload of the optimizer needs PT_HPU_LAZY_MODE=0; the default is 1.

    Bad `job.sh`:

        python gaudi_spawn.py --world_size 8 run_clm.py --output_dir out --per_device_train_batch_size 8 --use_habana --fp16

    Good `job.sh`:

        python gaudi_spawn.py --world_size 8 run_clm.py --output_dir out --per_device_train_batch_size 8 --use_habana --bf16
    """
    if job.context.device != "hpu":
        return
    for arguments in job.arguments:
        if str(arguments.values.get("fp16")).lower() == "true":
            key = "fp16" if arguments.document else "--fp16"
            yield Hit(f"{key} is refused on Gaudi: bf16 is its precision", arguments.at("fp16"), key, Fix({key: None}, note="give bf16"))
    for config in job.deepspeed:
        device = config.get("zero_optimization", "offload_optimizer", "device")
        if device in ("cpu", "nvme") and job.environment.get("PT_HPU_LAZY_MODE", "1") != "0" and config.reader != "deepspeed":
            path = ("zero_optimization", "offload_optimizer", "device")
            message = f"{'.'.join(path)} {device} on Gaudi stops unless PT_HPU_LAZY_MODE=0"
            yield Hit(message, config.at(*path), ".".join(path), Fix({"PT_HPU_LAZY_MODE": "0"}))


@rule(
    "JOB022",
    Severity.ERROR,
    Job,
    fails_at="first step",
    checked="source",
    source="accelerate-1.15.0-state",
    covers=("ACC-GPUIDS-COUNT",),
)
def fewer_devices_visible_than_ranks(job: Job) -> Iterator[Hit]:
    """CUDA_VISIBLE_DEVICES of the job script names fewer devices than a machine has ranks.

    A rank without a device of its own stops (invalid device ordinal), or shares one and NCCL stops: "Duplicate GPU detected".

    Bad `job.sh`:

        export CUDA_VISIBLE_DEVICES=0,1
        torchrun --nproc-per-node 4 train.py

    Good `job.sh`:

        export CUDA_VISIBLE_DEVICES=0,1,2,3
        torchrun --nproc-per-node 4 train.py
    """
    if len(job.commands) != 1 or (ranks := _ranks_of_machine(job)) is None:
        return
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        devices = job.environment.get(name, "").split(",")
        if all(device.strip().isdecimal() for device in devices) and len(devices) < ranks:
            message = f"{name} shows {len(devices)} device{'s' * (len(devices) > 1)}, and the machine has {ranks} ranks"
            yield Hit(message, job.places.get(name), name)


def _ranks_of_machine(job: Job) -> int | None:
    command = job.commands[0]
    if command.launcher == "torchrun":
        count = str(command.typed.get("nproc", ""))
        return int(count) if count.isdecimal() and len(count) < 6 else None
    if command.launcher != "accelerate" or len(job.accelerate) != 1:
        return None
    config = job.accelerate[0]
    count, machines = config.value("num_processes"), max(config.launch.machines, 1)
    alone = config.kind in ("simple", "tpu", "sagemaker") or config.value("gpu_ids") not in (None, "all")
    return count // machines if type(count) is int and not alone else None
