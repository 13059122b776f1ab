"""Global memory, which is that of the tensors given to a launch, and the shared memory of a block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from tests.ptx.numbers import WORDS, Array
from tests.ptx.program import PtxError

WARP = 32
NOBODY, SEVERAL = 0, 255  # beside a warp's number plus one


class Words:
    """Bytes that begin at `start`, seen as words of any size; what is behind the last whole word is not in them."""

    def __init__(self, data: Array, start: int = 0) -> None:
        """data: [bytes] uint8."""
        self.data, self.start, self.end = data, start, start + len(data)
        self._views = {size: data[: len(data) // size * size].view(word) for size, word in WORDS.items()}

    def holds(self, addresses: Array, size: int) -> Array:
        """Which of addresses[n] int64 have a word of `size` bytes in here."""
        return (addresses >= self.start) & (addresses + size <= self.end)

    def holds_all(self, addresses: Array, size: int) -> bool:
        """Whether all of addresses[n], n > 0, have."""
        return bool(self.start <= addresses.min() and addresses.max() + size <= self.end)

    def at(self, addresses: Array, size: int) -> tuple[Array, Array]:
        """A view of all words, and which of them addresses[n] are; one may be written through the other."""
        return self._views[size], (addresses - self.start) // size


def check_alignment(addresses: Array, size: int, text: str) -> None:
    """Of words of `size` bytes. Raises PtxError."""
    if (addresses & (size - 1)).any():
        raise PtxError(f"misaligned: {text}")


class GlobalMemory:
    """The storages of tensors. Nothing else may be touched: beyond them is an error, whatever lies there."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors}
        self._storages = [
            Words(torch.empty(0, dtype=torch.uint8).set_(storage).numpy(), start)
            for start, storage in storages.items()
            if storage.nbytes()
        ]
        assert all(words.start % 16 == 0 for words in self._storages)

    def read(self, addresses: Array, size: int, text: str) -> Array:
        """addresses[n] int64 -> their words of `size` bytes. Raises PtxError."""
        out = np.empty(len(addresses), WORDS[size])
        for chosen, words, index in self._found(addresses, size, text):
            out[chosen] = words[index]
        return out

    def write(self, addresses: Array, data: Array, text: str) -> None:
        """data[n] words to addresses[n]. Raises PtxError."""
        for chosen, words, index in self._found(addresses, data.dtype.itemsize, text):
            words[index] = data[chosen]

    def add(self, addresses: Array, numbers: Array, text: str) -> Array:
        """Adds numbers[n] one after the other -> what was there before each. Raises PtxError."""
        before = np.empty_like(numbers)
        for chosen, words, index in self._found(addresses, numbers.dtype.itemsize, text):
            counters = words.view(numbers.dtype)
            for one, place in zip(np.arange(len(numbers))[chosen], index, strict=True):
                before[one] = counters[place]
                counters[place] += numbers[one]
        return before

    def check(self, addresses: Array, size: int, text: str) -> None:
        """That these words are there. Raises PtxError."""
        for _ in self._found(addresses, size, text):
            pass

    def _found(self, addresses: Array, size: int, text: str) -> Iterator[tuple[Array | slice, Array, Array]]:
        """Which of the addresses are in a storage, and where, for each that has some."""
        check_alignment(addresses, size, text)
        for words in self._storages:  # nearly always one has all of them
            if words.holds_all(addresses, size):
                yield (slice(None), *words.at(addresses, size))
                return
        missing = np.ones(len(addresses), bool)
        for words in self._storages:
            chosen = words.holds(addresses, size)
            if chosen.any():
                yield (chosen, *words.at(addresses[chosen], size))
                missing &= ~chosen
        if missing.any():
            raise PtxError(f"out of bounds in {missing.sum()} threads, at {addresses[missing][0]:#x}: {text}")


class SharedMemory:
    """That of one block, full of noise at first. Of every byte it knows which warp wrote and which read it since the
    last barrier: what another warp wrote or read since then may not be there yet, or not any more.
    """

    def __init__(self, size: int, noise: np.random.Generator) -> None:
        self._words = Words(noise.integers(0, 256, size, dtype=np.uint8))
        self._writers, self._readers = map(Words, np.full((2, size), NOBODY, np.uint8))

    def barrier(self) -> None:
        """What was done before is done."""
        self._writers.data.fill(NOBODY)
        self._readers.data.fill(NOBODY)

    def read(self, addresses: Array, size: int, threads: Array, text: str) -> Array:
        """The words of `size` bytes at addresses[n] int64, each read by one of threads[n]. Raises PtxError."""
        self._check(addresses, size, text)
        tags = _tags(threads, size)
        if self._others(self._writers, addresses, tags).any():
            raise PtxError(f"race: reads what another warp wrote, no barrier between: {text}")
        self._note(self._readers, addresses, tags)
        words, index = self._words.at(addresses, size)
        return words[index]

    def write(self, addresses: Array, data: Array, threads: Array, text: str) -> None:
        """data[n] words to addresses[n], each by one of threads[n]; several may write the same one with the same number
        at once. Raises PtxError.
        """
        self.begin_write(addresses, data.dtype.itemsize, threads, text)
        words, index = self._words.at(addresses, data.dtype.itemsize)
        words[index] = data
        if (words[index] != data).any():
            raise PtxError(f"race: threads write other numbers to the same place at once: {text}")

    def begin_write(self, addresses: Array, size: int, threads: Array, text: str) -> None:
        """What a copy will write, that nobody else may read or write from now on. Raises PtxError."""
        self._check(addresses, size, text)
        tags = _tags(threads, size)
        if self._others(self._readers, addresses, tags).any():
            raise PtxError(f"race: writes what another warp read, no barrier between: {text}")
        if self._others(self._writers, addresses, tags).any():
            raise PtxError(f"race: writes what another warp wrote, no barrier between: {text}")
        self._note(self._writers, addresses, tags)

    def read_by_unit(self, addresses: Array, text: str) -> Array:
        """addresses[...] int64 -> 16-bit words that a matrix unit reads for four warps. Raises PtxError."""
        flat = addresses.ravel()
        self._check(flat, 2, text)
        writers, index = self._writers.at(flat, 2)
        if writers[index].any():
            raise PtxError(f"race: reads what was written, no barrier between: {text}")
        readers, index = self._readers.at(flat, 2)
        readers[index] = SEVERAL << 8 | SEVERAL
        words, index = self._words.at(addresses, 2)
        return words[index]

    def _check(self, addresses: Array, size: int, text: str) -> None:
        check_alignment(addresses, size, text)
        if not self._words.holds_all(addresses, size):
            raise PtxError(f"out of bounds of {self._words.end} bytes of shared memory: {text}")

    def _others(self, noted: Words, addresses: Array, tags: Array) -> Array:
        """-> [n, size] bool: bytes that others than tags[n, size] are noted for."""
        words, index = noted.at(addresses, tags.shape[1])
        found = words[index].view(np.uint8).reshape(tags.shape)
        return (found != NOBODY) & (found != tags)

    def _note(self, noted: Words, addresses: Array, tags: Array) -> None:
        """Adds tags[n, size] to those there are."""
        words, index = noted.at(addresses, tags.shape[1])
        tags = np.where(self._others(noted, addresses, tags), SEVERAL, tags)
        words[index] = tags.view(words.dtype).ravel()
        # Of several warps at the same place at once the last one was noted.
        tags[self._others(noted, addresses, tags).any(axis=1)] = SEVERAL
        words[index] = tags.view(words.dtype).ravel()


def _tags(threads: Array, size: int) -> Array:
    """-> [n, size] uint8: the warps of threads[n], as they are noted for each byte of a word."""
    return np.repeat((threads // WARP + 1).astype(np.uint8)[:, None], size, axis=1)
