"""Construction of an engine from its configuration: load the model, size the cache, warm up, measure costs."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import msgspec
import torch

from engine.canary import has_finite_answers
from engine.config import DEFAULT_GPU_PAGE_SIZE, DEFAULT_PAGE_SIZE, EngineConfig
from engine.constraints.compiler import ConstraintFactory
from engine.disk_store import open_store
from engine.engine import Engine
from engine.errors import ConfigError
from engine.execution.cache import KVCache
from engine.execution.device_slots import DeviceSlots
from engine.execution.graphs import Capture, CudaCapture
from engine.execution.logit_edits import LogitEdits
from engine.execution.models import load_model
from engine.execution.models.errors import ModelError
from engine.execution.models.interface import Model
from engine.execution.runner import ModelRunner
from engine.execution.swap import STAGING_BYTES
from engine.fingerprint import fingerprint
from engine.heartbeat import Heartbeat
from engine.host import free_memory_bytes, num_cores, return_free_memory, total_memory
from engine.model_files.open_model import open_model
from engine.scheduling.disk_pages import STAGING_SECONDS
from engine.scheduling.policies import make_policy
from engine.scheduling.scheduler import Scheduler
from engine.types import ModelInfo
from engine.warm_up import attention_ratio, warm_up
from kernels.interface import Kernels
from kernels.load import QuantizationError
from kernels.load import load as load_kernels
from kernels.reference.backend import ReferenceKernels

# Parameters below which one thread of torch serves a model fastest. Its operations are too short to share, and torch's
# threads wait for each other: they lose nine tenths of their speed as soon as another process needs a core.
SMALL_MODEL_PARAMETERS = 20_000_000

MIN_FREE_BYTES = 256 << 20  # of GPU memory once steps are recorded, for activations of steps that are not recorded

MAX_SLOT_BYTES = 1 << 40  # virtual memory for the slots' tables

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
WEIGHT_BITS: dict[str, Literal[4, 8] | None] = {"none": None, "int8": 8, "int4": 4}

Progress = Callable[[str, int, int], None]  # stage, done, total

log = logging.getLogger("carousel.engine")


def build_engine(
    config: EngineConfig,
    progress: Progress = lambda what, done, total: None,
    heartbeat: Heartbeat | None = None,
) -> Engine:
    """Build an engine that is ready to step.

    `heartbeat` counts layers, and tasks of compiled kernels; it must outlive the engine. Raises `ConfigError` for a
    configuration that cannot be built, with the option and the numbers.
    """
    config.validate()
    device = _device(config.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # Triton launches on the current device, not on that of the tensors
    config = msgspec.structs.replace(config, page_size=_page_size(config, device))
    dtype = _dtype(config.dtype, device)
    kernels = _kernels(config, device, dtype, lambda done, total: progress("kernels", done, total))
    kernels.count_progress(heartbeat.address if heartbeat else None)
    kernels.set_threads(config.threads or num_cores())  # all cores, for preparing the weights
    files = open_model(Path(config.model), with_vocabulary=False)  # the API process sends it
    model = load_model(
        files,
        dtype=dtype,
        device=device,
        progress=lambda done, total: progress("weights", done, total),
        load_format=config.load_format,
        kernels=kernels,
        on_layer=heartbeat.beat if heartbeat else lambda: None,
        checksum_progress=lambda done, total: progress("checksums", done, total),
        max_len=config.max_model_len,
    )
    if config.batch_invariant and not model.is_native:
        raise ConfigError(
            "batch_invariant is not supported for a model that runs in transformers; the README lists the families "
            "that this engine runs itself"
        )
    _check_heads(model, kernels, device)
    if not config.threads and model.num_parameters < SMALL_MODEL_PARAMETERS and not kernels.robust_to_noisy_cores:
        kernels.set_threads(1)
    max_len = _max_len(config, model.max_position)
    _check_slots(config, max_len)
    cache_dtype = _cache_dtype(config.kv_cache_dtype, model, kernels)
    num_pages, host_pages = _size_cache(config, model, cache_dtype, max_len)
    cache = KVCache.allocate(num_pages, config.tokens_per_page, model.cache_spec(), cache_dtype, device, host_pages)
    slots, has_drafts = config.max_num_seqs, config.speculation == "auto"
    runner = ModelRunner(model, cache, kernels, slots, max_len, _capture(config, device), has_drafts=has_drafts)
    progress("warm-up", 0, 1)
    _log_free_memory(device, "before steps are recorded")
    _record(runner, kernels, config.early_launch, lambda done, total: progress("graphs", done, total))
    costs = replace(warm_up(config, runner, num_pages, host_pages, max_len), attention_ratio=attention_ratio(model))
    progress("warm-up", 1, 1)
    _check_free_memory(config, device)
    policy = make_policy(config, costs)
    described = files.description()
    quantization = described.quantization(config.quantization)
    if config.quantization not in ("none", quantization):
        log.warning(
            "the matrices that the file has in %s stay as they are; quantization %s applies to others only",
            quantization,
            config.quantization,
        )
    info = ModelInfo(
        name=files.name,
        vocab_size=model.vocab_size,
        max_model_len=max_len,
        num_pages=num_pages,
        page_size=config.tokens_per_page,
        max_num_seqs=config.max_num_seqs,
        device=str(device),
        dtype=str(model.weights_dtype if config.dtype == "auto" else dtype).removeprefix("torch."),
        parameters=model.num_parameters,
        is_exact=_is_exact(config, model, kernels, device),
        format=described.format,
        family=described.family or "carousel",
        quantization=quantization,
        file_bytes=described.file_bytes,
        fingerprint=fingerprint(files, config, str(model.dtype), type(kernels).__name__, model.variant),
    )
    sizes = {"num_pages": num_pages, "host_pages": host_pages, "max_len": max_len}
    continuous = msgspec.structs.replace(config, batching="continuous", batch_size=None, batch_timeout=0.0)
    trial = Engine(continuous, info, Scheduler(continuous, make_policy(continuous, costs), **sizes), runner)
    if not has_finite_answers(trial):
        raise ModelError(
            f"{config.model}: the model computes NaN or infinity in {info.dtype}; "
            "--dtype bfloat16 or float32 has a wider range"
        )
    return_free_memory()  # of the warm-up
    scheduler = Scheduler(config, policy, **sizes)
    if (store := open_store(config, cache, info.fingerprint)) is not None:
        scheduler.kv_manager.use_disk(store, max(1, int(STAGING_SECONDS * costs.swap_pages_per_second)))
    return Engine(config, info, scheduler, runner, constraints=ConstraintFactory())


def _is_exact(config: EngineConfig, model: Model, kernels: Kernels, device: torch.device) -> bool:
    """Return whether the tokens of a request are the same in any batch. On a CPU the compiled kernels and torch in
    float32 are invariant.
    """
    if config.batch_invariant:
        return True
    is_invariant = type(kernels) is not ReferenceKernels or model.dtype is torch.float32
    return model.is_native and device.type == "cpu" and is_invariant


def _record(runner: ModelRunner, kernels: Kernels, early_launch: bool, progress: Callable[[int, int], None]) -> None:
    """Record steps; if the first recording fails with early launch, retry without it."""
    starts_early = kernels.use_early_launch(early_launch)
    try:
        runner.record(progress)
    except RuntimeError as error:
        if not starts_early or runner.has_recordings:
            raise
        log.warning(
            "recording a step with early launch failed, so the server continues with --no-early-launch: %s", error
        )
        kernels.use_early_launch(False)
        runner.record(progress)


def _device(name: str) -> torch.device:
    """Return the device called `name`; a CUDA device with its index, which torch.cuda.set_device requires."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:  # not a device name of torch
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ConfigError(f"device {name!r} is not supported; choose auto, cpu, cuda or cuda:N")
    if device.type == "cpu":
        return device
    if not torch.cuda.is_available():
        raise ConfigError(f"device {name!r} is not available: torch finds no CUDA device")
    if device == torch.device("cuda"):
        return torch.device("cuda", torch.cuda.current_device())
    count = torch.cuda.device_count()
    if device.index >= count:
        raise ConfigError(
            f"device {name!r} is not available: torch finds {count} CUDA devices, whose numbers start at 0"
        )
    return device


def _page_size(config: EngineConfig, device: torch.device) -> int:
    """Return the tokens of a page, by default larger on a GPU."""
    return config.page_size or (DEFAULT_GPU_PAGE_SIZE if device.type == "cuda" else DEFAULT_PAGE_SIZE)


def _kernels(
    config: EngineConfig, device: torch.device, dtype: torch.dtype | None, progress: Callable[[int, int], None]
) -> Kernels:
    try:
        return load_kernels(
            device,
            dtype,
            config.kernels,
            config.batch_invariant,
            allow_bf16_activations=config.dtype == "auto",
            weight_bits=WEIGHT_BITS[config.quantization],
            progress=progress,
        )
    except QuantizationError as error:
        raise ConfigError(
            f"quantization {config.quantization} is not available on device {device} with dtype {config.dtype} and "
            f"kernels {config.kernels}: {error}; use none"
        ) from error
    except ValueError as error:
        raise ConfigError(f"batch_invariant is not available: {error}") from error


def _check_heads(model: Model, kernels: Kernels, device: torch.device) -> None:
    """Refuse attention heads for which a GPU has too little shared memory."""
    largest = kernels.max_head_dim(model.dtype, device)
    head_dim = model.cache_spec().max_head_dim
    if largest is not None and head_dim > largest:
        dtype = str(model.dtype).removeprefix("torch.")
        raise ConfigError(
            f"attention with heads of {head_dim} in {dtype} does not fit into this GPU's shared memory, "
            f"which allows at most {largest}; use dtype bfloat16 or kernels torch"
        )


def _dtype(name: str, device: torch.device) -> torch.dtype | None:
    """Return the dtype of computation; None for that of the checkpoint.

    On a CPU the default is float32, in which results are identical in every batch with any kernels. The weights are
    stored as in the checkpoint.
    """
    if name == "auto":
        return torch.float32 if device.type == "cpu" else None
    return DTYPES[name]


def _cache_dtype(name: str, model: Model, kernels: Kernels) -> torch.dtype:
    """Return the dtype of the KV cache; by default the model's choice, if the kernels support it."""
    dtype = model.default_cache_dtype() if name == "auto" else DTYPES[name]
    groups = model.cache_spec().groups
    if dtype == model.dtype or all(
        kernels.supports_kv_dtype(dtype, model.num_heads, group.heads, group.head_dim) for group in groups
    ):
        return dtype
    if name == "auto":
        return model.dtype
    computed = str(model.dtype).removeprefix("torch.")
    raise ConfigError(
        f"kv_cache_dtype {name} is not supported by these kernels for a model that computes in {computed}; "
        f"use auto or {computed}"
    )


def _max_len(config: EngineConfig, max_position: int) -> int:
    max_len = config.max_model_len or max_position
    if max_len > max_position:
        raise ConfigError(f"max_model_len must be at most {max_position}, the model's positions, got {max_len}")
    return max_len


def _check_slots(config: EngineConfig, max_len: int) -> None:
    """Refuse tables larger than the memory that a process may map. They are virtual until used."""
    needed = config.max_num_seqs * (max_len + 1) * 8
    if needed > MAX_SLOT_BYTES:
        raise ConfigError(
            f"max_num_seqs ({config.max_num_seqs}) slots of max_model_len ({max_len}) tokens need tables of "
            f"{needed / 2**30:.0f} GiB, but at most {MAX_SLOT_BYTES / 2**30:.0f} GiB are allowed"
        )


def _size_cache(config: EngineConfig, model: Model, dtype: torch.dtype, max_len: int) -> tuple[int, int]:
    """Return the number of device pages and host pages, at most twice the need of all slots at full length."""
    page_bytes = model.cache_spec().bytes_per_page(config.tokens_per_page, dtype)
    max_pages = 2 * config.max_num_seqs * -(-max_len // config.tokens_per_page)
    if config.num_pages is not None:
        pages = config.num_pages
        total, source = _total_memory(model.device, config.host_memory_share)
        if pages * page_bytes > total:
            raise ConfigError(
                f"num_pages ({pages}) of {page_bytes} bytes each need {pages * page_bytes / 2**30:.1f} GiB, but only "
                f"{total / 2**30:.1f} GiB exist ({source}); lower num_pages, or leave it out"
            )
    elif model.device.type == "cuda":
        torch.cuda.empty_cache()  # memory that torch caches after loading counts as used
        free, total = torch.cuda.mem_get_info(model.device)
        reserved = LogitEdits.table_bytes(config.max_num_seqs, model.vocab_size)
        reserved += STAGING_BYTES if config.swap_space else 0
        if config.speculation == "auto" and _is_recorded(config, model.device):
            reserved += DeviceSlots.token_bytes(config.max_num_seqs, max_len)
        pages = min(max_pages, int(free - reserved - (1.0 - config.memory_fraction) * total) // page_bytes)
    else:
        # Half of the free memory: the other half is for untouched weights, activations and other processes.
        share = config.memory_fraction * config.host_memory_share
        pages = min(max_pages, int(share * free_memory_bytes() / 2) // page_bytes)
    if pages < 1:
        raise ConfigError(
            f"there is no memory for a KV page of {page_bytes} bytes; use a smaller model or raise memory_fraction"
        )
    host_bytes = config.swap_space * config.host_memory_share * 2**30  # may exceed an integer
    most = _max_swap_bytes(model.device, pages * page_bytes, config.host_memory_share)
    if host_bytes > most:
        log.warning(
            "swap_space is %g GiB, of which %.2f GiB are used: half of the free host memory%s",
            config.swap_space,
            most / 2**30,
            "" if config.host_memory_share == 1 else f", divided by {1 / config.host_memory_share:.0f} engines",
        )
        host_bytes = most
    return pages, int(min(host_bytes / page_bytes, max_pages))


def _total_memory(device: torch.device, share: float) -> tuple[int, str]:
    """Return the bytes that a device has, or this engine's share of a CPU's memory, and the name of the limit."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1], "the GPU's memory"
    memory = total_memory()
    source = memory.source if share == 1 else f"{memory.source}, divided by {1 / share:.0f} engines"
    return int(memory.limit * share), source


def _max_swap_bytes(device: torch.device, cache_bytes: int, share: float) -> int:
    """Return the most bytes that swapped pages may take: this engine's share of half of the host memory that the KV
    caches leave.
    """
    taken = cache_bytes / share if device.type == "cpu" else 0
    return int(share * max(0, free_memory_bytes() - taken) / 2)


def _log_free_memory(device: torch.device, when: str) -> int:
    """Return unused caches to the GPU, log its free memory, and return it in bytes; 0 on a CPU."""
    if device.type != "cuda":
        return 0
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    log.info("GPU memory: %.2f of %.2f GiB are free %s", free / 2**30, total / 2**30, when)
    return free


def _check_free_memory(config: EngineConfig, device: torch.device) -> None:
    """Refuse a GPU with too little memory left for steps that are not recorded."""
    free = _log_free_memory(device, "after steps were recorded")
    if device.type == "cuda" and free < MIN_FREE_BYTES:
        raise ConfigError(
            f"only {free >> 20} MiB of GPU memory are free after steps were recorded, but at least "
            f"{MIN_FREE_BYTES >> 20} MiB are needed; lower memory_fraction (now {config.memory_fraction}), "
            f"max_num_seqs ({config.max_num_seqs}) or max_model_len; the last two also reduce the recordings"
        )


def _capture(config: EngineConfig, device: torch.device) -> Capture | None:
    """Return how steps are recorded: on a GPU as CUDA graphs, unless disabled."""
    return CudaCapture(device) if _is_recorded(config, device) else None


def _is_recorded(config: EngineConfig, device: torch.device) -> bool:
    """Return whether steps are recorded.

    Torch's reference kernels read lengths from the device in the middle of a step, which cannot be recorded.
    """
    return device.type == "cuda" and config.kernels != "torch" and not config.enforce_eager
