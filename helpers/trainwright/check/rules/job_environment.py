"""Rules on the environment that a job sets, against what its files and sources ask for."""

from __future__ import annotations

from collections.abc import Iterator

from trainwright.check.subject import Command, Job
from trainwright.report import Fix, Severity
from trainwright.rules import Hit, rule

_CHOOSES_NODES = ("-N", "--nodes", "-n", "--ntasks", "-w", "--nodelist", "-r", "--relative", "-x", "--exclude", "--het-group", "--overlap")


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
    """A machine gets more ranks than it has devices (CUDA_VISIBLE_DEVICES, or what the script asks of the scheduler).

    A rank without a device of its own stops (invalid device ordinal), or shares one and NCCL stops: "Duplicate GPU detected".
    Where `srun` starts `torchrun` on several nodes without `--nnodes`, each node trains by itself: a warning.

    Bad `job.sh`:

        export CUDA_VISIBLE_DEVICES=0,1
        torchrun --nproc-per-node 4 train.py

    Good `job.sh`:

        export CUDA_VISIBLE_DEVICES=0,1,2,3
        torchrun --nproc-per-node 4 train.py
    """
    if len(job.commands) == 1:
        yield from _nodes_apart(job, job.commands[0])
    if len(job.commands) != 1 or (ranks := _ranks_of_machine(job)) is None:
        return
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        devices = job.environment.get(name, "").split(",")
        if all(device.strip().isdecimal() for device in devices) and len(devices) < ranks:
            message = f"{name} shows {len(devices)} device{'s' * (len(devices) > 1)}, and the machine has {ranks} ranks"
            yield Hit(message, job.places.get(name), name)
            return
    devices_asked = job.devices_of_node
    if devices_asked and devices_asked < ranks and not _on_cpu(job):
        there = f"{devices_asked} GPU{'s' * (devices_asked > 1)} there"
        yield Hit(f"{ranks} ranks on each machine, and the job has {there}", job.commands[0].where)


def _on_cpu(job: Job) -> bool:
    """Whether ranks may need no device of their own."""
    if job.context.device == "cpu" or job.environment.get("CUDA_VISIBLE_DEVICES") == "":
        return True
    words = job.commands[0].script_words
    return any("gloo" in text for text in (*words, *(source.text for source in job.sources))) or any("cpu" in w.lower() for w in words)


def _nodes_apart(job: Job, command: Command) -> Iterator[Hit]:
    """torchrun on every node, and nothing that makes one job of them."""
    words = command.words[: len(command.words) - len(command.script_words)]
    if command.launcher != "torchrun" or (job.nodes or 1) < 2 or any("$" in word for word in (*words, *command.wrapper)):
        return
    joined = any(name.startswith(("nnodes", "node_rank", "rdzv", "master_")) for name in command.typed)
    on_each = command.wrapper[:1] == ("srun",) and not any(word.startswith(_CHOOSES_NODES) for word in command.wrapper)
    if on_each and not joined and not any(name.startswith("PET_") for name in job.environment):
        message = f"srun starts torchrun on {job.nodes} nodes, and no --nnodes joins them: each node runs a job of its own"
        fix = Fix({"--nnodes": job.nodes}, note="with --rdzv-backend c10d and --rdzv-endpoint HOST:PORT")
        yield Hit(message, command.where, "--nnodes", fix, Severity.WARNING, "never")


def _ranks_of_machine(job: Job) -> int | None:
    """The ranks that the one launch line starts on each machine, where it and its file say so."""
    command = job.commands[0]
    if command.launcher == "torchrun":
        count = str(command.typed.get("nproc", ""))
        return int(count) if count.isdecimal() and len(count) < 6 else None
    if command.launcher != "accelerate" or len(job.accelerate) != 1:
        return None
    config = job.accelerate[0]
    count, machines = config.value("num_processes"), max(config.launch.machines, 1)
    if "$" in f"{command.typed.get('num_machines')}{command.typed.get('num_processes')}":
        return None  # the shell fills it in
    alone = config.kind in ("simple", "tpu", "sagemaker") or config.value("gpu_ids") not in (None, "all")
    return count // machines if type(count) is int and not alone else None
