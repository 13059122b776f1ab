"""Replacements for `torch.cuda` and Triton's launches while the emulated GPU is active."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels.cpu.compiler import COMPILERS
from kernels.triton.device_limits import SHARED_BYTES
from tests.gpu import machine as machinery
from tests.gpu.machine import Machine, Mark
from tests.gpu.tensors import DEVICE, DeviceMode, launch, pinned

MEMORY = 8 << 30  # bytes
# Capability of an Ampere card. Programmatic dependent launch (Hopper) is expressed in PTX, which `tests.ptx` runs.
CAPABILITY = (8, 0)


class Generator(torch.Generator):
    """Generator that accepts a CUDA device; its numbers are a CPU's."""

    def __new__(cls, device: object = None) -> Generator:
        return super().__new__(cls)


@contextmanager
def emulated_gpu(machine: Machine) -> Iterator[None]:
    """Make torch and Triton find one CUDA device, which is `machine`."""
    import torch._dynamo  # counts torch's functions on import, and a dispatch mode imports it

    _make_guard()
    with pytest.MonkeyPatch.context() as patching:
        for name, replacement in _cuda_replacements(machine).items():
            patching.setattr(torch.cuda, name, replacement)
        _pin(machine, patching)
        patching.setattr(torch, "Generator", Generator)
        # A module that moves here gets new parameters: host parameters cannot take over data that is not real memory.
        patching.setattr(torch.__future__, "get_overwrite_module_params_on_conversion", lambda: True)
        _queue_launches(machine, patching)
        before = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)  # `torch.tensor` creates on the host, then copies
        try:
            with DeviceMode(machine):
                yield
        finally:
            torch._C._set_only_lift_cpu_tensors(before)


@functools.cache
def _make_guard() -> None:
    """Install a CUDA device guard for the lifetime of the process. If torch is built for CUDA, this replaces the guard
    that finds no device."""
    if torch.version.cuda is not None:
        torch._C._ensureCUDADeviceGuardSet()
        return
    root = Path(torch.__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder) / "guard.so"
        compiler = next(name for name in COMPILERS if shutil.which(name))
        options = ["-std=c++20", "-shared", "-fPIC", "-O0", f"-I{root / 'include'}", f"-L{root / 'lib'}", "-lc10"]
        subprocess.run([compiler, str(Path(__file__).with_name("guard.cpp")), "-o", str(built), *options], check=True)
        ctypes.CDLL(str(built))


def _cuda_replacements(machine: Machine) -> dict[str, Any]:
    class Event:
        """Replacement for `torch.cuda.Event`. No time passes on this device."""

        def __init__(self, enable_timing: bool = False) -> None:
            self._mark: Mark | None = None

        def record(self, stream: Stream | None = None) -> None:
            self._mark = machine.mark(machine.current if stream is None else stream.queue)

        def query(self) -> bool:
            machine.refuse_in_capture("an event is queried")
            return self._mark is None or self._mark.is_reached

        def synchronize(self) -> None:
            if self._mark is not None:
                machine.wait_for(self._mark)

        def elapsed_time(self, end: Event) -> float:
            assert self.query() and end.query()
            return 1.0

    class Stream:
        """Replacement for `torch.cuda.Stream`."""

        def __init__(self, device: object = None, queue: machinery.Stream | None = None) -> None:
            self.device = DEVICE
            self.queue = queue or machine.new_stream()

        def record_event(self, event: Event | None = None) -> Event:
            event = event or Event()
            event.record(self)
            return event

        def wait_event(self, event: Event) -> None:
            with machine.use_stream(self.queue):
                machine.enqueue(lambda: None, after=event._mark)

        def wait_stream(self, stream: Stream) -> None:
            self.wait_event(stream.record_event())

        def synchronize(self) -> None:
            self.record_event().synchronize()

    class CUDAGraph:
        """Replacement for `torch.cuda.CUDAGraph`."""

        def __init__(self) -> None:
            self.graph = machinery.Graph()
            self._captures = ExitStack()

        def capture_begin(self, pool: object = None) -> None:
            self._captures.enter_context(machine.capture(self.graph, machine.current))

        def capture_end(self) -> None:
            self._captures.close()

        def replay(self) -> None:
            machine.enqueue(self.graph.work)

    def graph(recorded: CUDAGraph, pool: object = None, stream: Stream | None = None) -> AbstractContextManager[None]:
        return machine.capture(recorded.graph, stream.queue if stream else machine.new_stream())

    def set_sync_debug_mode(mode: str) -> None:
        machine.may_wait_implicitly = mode != "error"

    def do_nothing(*args: object, **options: object) -> None:
        machine.refuse_in_capture("a function of torch.cuda is called")

    properties = SimpleNamespace(
        name="emulated GPU",
        total_memory=MEMORY,
        multi_processor_count=4,
        shared_memory_per_block_optin=SHARED_BYTES[80],
    )
    return {
        "CUDAGraph": CUDAGraph,
        "Event": Event,
        "Stream": Stream,
        "_lazy_init": do_nothing,
        "_sleep": lambda cycles: machine.enqueue(lambda: None),
        "current_device": lambda: DEVICE.index,
        "current_stream": lambda device=None: Stream(queue=machine.current),
        "device_count": lambda: 1,
        "empty_cache": do_nothing,
        "get_device_capability": lambda device=None: CAPABILITY,
        "get_device_name": lambda device=None: properties.name,
        "get_device_properties": lambda device=None: properties,
        "graph": graph,
        "graph_pool_handle": object,
        "is_available": lambda: True,
        "mem_get_info": lambda device=None: (MEMORY, MEMORY),
        "set_device": do_nothing,
        "set_sync_debug_mode": set_sync_debug_mode,
        "stream": lambda stream: machine.use_stream(stream.queue),
        "synchronize": lambda device=None: machine.wait_for_all(),
    }


def _pin(machine: Machine, patching: pytest.MonkeyPatch) -> None:
    """Replace `Tensor.pin_memory` and `torch.tensor`; `DeviceMode` pins memory of `torch.empty` and the like."""
    make = torch.tensor

    def pin(tensor: Tensor) -> Tensor:
        machine.refuse_in_capture("memory is pinned")
        return pinned.add(tensor.clone())

    def make_pinned(data: object, *, pin_memory: bool = False, **options: Any) -> Tensor:
        return pin(make(data, **options)) if pin_memory else make(data, **options)

    patching.setattr(torch.Tensor, "pin_memory", pin)
    patching.setattr(torch, "tensor", make_pinned)


def _queue_launches(machine: Machine, patching: pytest.MonkeyPatch) -> None:
    """Queue Triton kernels on device tensors; Triton's interpreter runs them in stream order."""
    from triton.runtime.interpreter import InterpretedFunction

    interpret = InterpretedFunction.run

    def run(self: InterpretedFunction, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        if any(isinstance(one, Tensor) for one in (*args, *options.values())):
            launch(machine, lambda *a, **o: interpret(self, *a, grid=grid, warmup=warmup, **o), args, options)
        else:
            interpret(self, *args, grid=grid, warmup=warmup, **options)

    patching.setattr(InterpretedFunction, "run", run)
