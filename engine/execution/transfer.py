"""Transfers between host and device that do not wait.

A copy to a GPU from pageable memory first waits for all earlier work of the GPU, and a copy back waits by definition.
One of either in a step leaves the GPU idle while the next step is prepared. Copies from and to pinned memory are
asynchronous.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

ALIGNMENT = 16  # bytes


def to_device(arrays: Sequence[NDArray[np.generic]], device: torch.device) -> list[Tensor]:
    """Return the arrays on `device`: on a CPU in their own memory, on a GPU through one copy for all."""
    arrays = [np.ascontiguousarray(array) for array in arrays]
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    offsets, size = [], 0
    for array in arrays:
        offsets.append(size)
        size += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    host = torch.empty(size, dtype=torch.uint8, pin_memory=True)  # kept alive by torch until the copy is done
    staged = host.numpy()
    for array, offset in zip(arrays, offsets, strict=True):
        staged[offset : offset + array.nbytes] = array.reshape(-1).view(np.uint8)
    copied = host.to(device, non_blocking=True)
    return [
        copied[offset : offset + array.nbytes].view(torch.from_numpy(array).dtype).view(array.shape)
        for array, offset in zip(arrays, offsets, strict=True)
    ]


class PinnedBuffer:
    """Arrays at fixed addresses on host and device.

    After writing to `host`, call `send`, which copies all of them at once. Earlier work on the device still reads the
    previous values.
    """

    def __init__(self, device: torch.device, **fields: tuple[tuple[int, ...], DTypeLike]) -> None:
        """Allocate fields given as name = (shape, dtype), sorted by element size, largest first."""
        self.host = np.zeros((), np.dtype([(name, dtype, shape) for name, (shape, dtype) in fields.items()]))
        self._bytes = torch.zeros(self.host.nbytes, dtype=torch.uint8, device=device)
        self.device: dict[str, Tensor] = {}
        offset = 0
        for name, (shape, _) in fields.items():
            array = self.host[name]
            view = self._bytes[offset : offset + array.nbytes]
            self.device[name] = view.view(torch.from_numpy(np.zeros(0, array.dtype)).dtype).view(shape)
            offset += array.nbytes

    def send(self) -> None:
        """Copy `host` to the device; it may be overwritten at once."""
        sent = torch.from_numpy(self.host.reshape(1).view(np.uint8))
        if self._bytes.is_cuda:
            sent = sent.pin_memory()  # a copy, kept alive by torch until it is on the device
        self._bytes.copy_(sent, non_blocking=True)


def mark_time(device: torch.device) -> torch.cuda.Event | None:
    """Record the time at which a GPU reaches this point of the stream; None on a CPU."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event


class HostCopy:
    """Asynchronous copies of tensors to the host, with their values at this point of the stream."""

    def __init__(self, tensors: Sequence[Tensor], device: torch.device, began: torch.cuda.Event | None = None) -> None:
        """began: the result of `mark_time` before the work whose duration is `seconds`."""
        self._began, self._copied = began, None
        if device.type != "cuda":
            self._tensors = [tensor.clone() for tensor in tensors]
            return
        self._tensors = [
            torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
            for tensor in tensors
        ]
        self._copied = mark_time(device)

    @property
    def is_complete(self) -> bool:
        """Return whether the copies are complete, so that `wait` returns at once."""
        return self._copied is None or bool(self._copied.query())  # type: ignore[no-untyped-call]

    def wait(self) -> list[Tensor]:
        """Wait for the copies and all earlier work of the device, and return the host tensors."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._tensors

    @property
    def seconds(self) -> float | None:
        """Return how long the device took from `began` to the end of the copies, after `wait`; None on a CPU."""
        if self._began is None or self._copied is None:
            return None
        return float(self._began.elapsed_time(self._copied)) / 1000
