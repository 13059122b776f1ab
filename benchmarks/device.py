"""Device under measurement: timing of operations, and ceilings of the device."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from statistics import median

import torch

from engine.execution.graphs import record
from kernels.interface import Kernels
from kernels.load import load

Call = Callable[[], object]

# Calls shorter than this are distorted by launch gaps and by the resolution of the clock.
SHORT = 20e-6  # seconds

# Several times the largest L2 cache, read often enough for the host to launch the measured call meanwhile.
FLUSHED_FLOATS = 64 << 20
FLUSHES = 4


@dataclass(frozen=True)
class Ceilings:
    """Peak rates of the device, measured in this run."""

    bytes_per_second: float  # bytes read plus written by a large copy
    flops_per_second: float  # large matrix product in bfloat16
    host_bytes_per_second: float  # copy from pinned host memory


class Device:
    """Device with its kernels and ceilings."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.on_gpu = device.type == "cuda"
        self.kernels: Kernels = load(device)
        self._flush = torch.zeros(FLUSHED_FLOATS if self.on_gpu else 1, device=device)
        self.ceilings = self._measure_ceilings()

    def times(self, *calls: Call, repeats: int = 20, share: bool = False) -> list[float]:
        """Return the seconds per call on the device, measured `repeats` times after a warm-up, with a cold L2 cache.

        All `calls` do the same work on separate memory. If they are short, or with `share`, they are recorded as one
        graph in which each runs once, and its time is divided by their number.
        """
        for _ in range(3):
            calls[0]()
        alone = [self.elapsed(calls[0]) for _ in range(repeats if self.on_gpu else 1)]
        if not self.on_gpu or (not share and (len(calls) == 1 or median(alone) > SHORT)):
            return alone
        replay = self._recorded(calls)
        replay()
        return [self.elapsed(replay) / len(calls) for _ in range(repeats)]

    def elapsed(self, call: Call) -> float:
        """Return the seconds of `call` on the device, after flushing the L2 cache.

        The flush only reads, because written data would have to be written back during the call.
        """
        if not self.on_gpu:
            began = time.perf_counter()
            call()
            return time.perf_counter() - began
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        for _ in range(FLUSHES):
            self._flush.amax()
        start.record()
        call()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1000

    def works(self) -> bool:
        """Return whether the device still works. After a kernel fault it is lost for this process."""
        try:
            if self.on_gpu:
                torch.cuda.synchronize(self.device)
        except RuntimeError as error:
            print(f"The device has failed: {error}", flush=True)
            return False
        return True

    def release(self) -> None:
        """Return torch's unused cached memory to the device."""
        if self.on_gpu:
            torch.cuda.empty_cache()

    def _measure_ceilings(self) -> Ceilings:
        size, side = (4 << 30, 8192) if self.on_gpu else (1 << 24, 256)
        source = torch.randint(-100, 100, (size,), dtype=torch.int8, device=self.device)
        target = torch.empty_like(source)
        copy = 2 * size / median(self.times(lambda: target.copy_(source)))
        a, b = (torch.randn((side, side), device=self.device).to(torch.bfloat16) for _ in range(2))
        rate = 2 * side**3 / median(self.times(lambda: a @ b))
        pinned = torch.empty(size // 16, dtype=torch.int8, pin_memory=self.on_gpu)
        there = source[: size // 16]
        seconds = median(self.times(lambda: there.copy_(pinned, non_blocking=True)))
        return Ceilings(copy, rate, len(pinned) / seconds)

    @cached_property
    def _stream(self) -> torch.cuda.Stream:
        """Return the stream for all recordings; libraries allocate workspace per stream."""
        return torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    def _recorded(self, calls: tuple[Call, ...]) -> Callable[[], None]:
        """Record one call after another as a CUDA graph and return its replay."""

        def one_after_another() -> None:
            for call in calls:
                call()

        torch.cuda.synchronize(self.device)  # wait for the inputs, which were computed on another stream
        return record(one_after_another, self._stream, torch.cuda.graph_pool_handle())
