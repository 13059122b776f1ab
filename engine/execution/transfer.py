"""Between host and device without waiting.

A copy to a GPU from ordinary memory first waits for all that the GPU was told before, and a copy back waits by nature;
one of either in a step, and the GPU idles while the next step is prepared. From and to pinned memory nothing waits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

ALIGNMENT = 16  # bytes


def to_device(arrays: Sequence[NDArray[np.generic]], device: torch.device) -> list[Tensor]:
    """The same numbers on `device`; on a CPU the arrays' own memory, on a GPU one copy for all of them."""
    arrays = [np.ascontiguousarray(array) for array in arrays]
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    places, size = [], 0
    for array in arrays:
        places.append(size)
        size += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    host = torch.empty(size, dtype=torch.uint8, pin_memory=True)  # kept by torch until the copy is done
    staged = host.numpy()
    for array, place in zip(arrays, places, strict=True):
        staged[place : place + array.nbytes] = array.reshape(-1).view(np.uint8)
    copied = host.to(device, non_blocking=True)
    return [
        copied[place : place + array.nbytes].view(torch.from_numpy(array).dtype).view(array.shape)
        for array, place in zip(arrays, places, strict=True)
    ]


class Mirror:
    """Arrays that stay where they are, here and on the device. Who has written to `host` calls `send`, which copies all
    at once; what the device was told before still reads what lay there."""

    def __init__(self, device: torch.device, **fields: tuple[tuple[int, ...], DTypeLike]) -> None:
        """fields: name = (shape, dtype), those of the largest elements first."""
        self.host = np.zeros((), np.dtype([(name, dtype, shape) for name, (shape, dtype) in fields.items()]))
        self._bytes = torch.zeros(self.host.nbytes, dtype=torch.uint8, device=device)
        self.there: dict[str, Tensor] = {}
        place = 0
        for name, (shape, _) in fields.items():
            array = self.host[name]
            there = self._bytes[place : place + array.nbytes]
            self.there[name] = there.view(torch.from_numpy(np.zeros(0, array.dtype)).dtype).view(shape)
            place += array.nbytes

    def send(self) -> None:
        """`host` as it is now; it may be written to again at once."""
        sent = torch.from_numpy(self.host.reshape(1).view(np.uint8))
        if self._bytes.is_cuda:
            sent = sent.pin_memory()  # a copy, kept by torch until it is on the device
        self._bytes.copy_(sent, non_blocking=True)


class Arriving:
    """Copies of tensors on their way to the host, as they are now."""

    def __init__(self, tensors: Sequence[Tensor], device: torch.device) -> None:
        self._landed: torch.cuda.Event | None = None
        if device.type != "cuda":
            self._tensors = [tensor.clone() for tensor in tensors]
            return
        self._tensors = [
            torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
            for tensor in tensors
        ]
        self._landed = torch.cuda.current_stream(device).record_event()

    @property
    def are_there(self) -> bool:
        """Whether `wait` would not."""
        return self._landed is None or bool(self._landed.query())  # type: ignore[no-untyped-call]

    def wait(self) -> list[Tensor]:
        """All that the device was told before, the copies too, is done."""
        if self._landed is not None:
            self._landed.synchronize()
        return self._tensors
