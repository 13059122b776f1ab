"""Global memory (the tensors of a launch) and the shared memory of a block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from tests.ptx.numbers import WORDS, Array
from tests.ptx.program import PtxError

WARP = 32
NO_WARP, SEVERAL_WARPS = 0, 255  # tags beside a warp's index plus one


class Words:
    """Bytes that begin at `start`, viewed as words of any size; a partial last word is not included."""

    def __init__(self, data: Array, start: int = 0) -> None:
        """`data`: [bytes] uint8."""
        self.data, self.start, self.end = data, start, start + len(data)
        self._views = {size: data[: len(data) // size * size].view(word) for size, word in WORDS.items()}

    def contains(self, addresses: Array, size: int) -> Array:
        """Return for each of addresses[n] int64 whether its word of `size` bytes is in this memory."""
        return (addresses >= self.start) & (addresses + size <= self.end)

    def contains_all(self, addresses: Array, size: int) -> bool:
        """Return whether all words of addresses[n], n > 0, are in this memory."""
        return bool(self.start <= addresses.min() and addresses.max() + size <= self.end)

    def at(self, addresses: Array, size: int) -> tuple[Array, Array]:
        """Return a writable view of all words, and the indices of addresses[n] in it."""
        return self._views[size], (addresses - self.start) // size


def check_alignment(addresses: Array, size: int, text: str) -> None:
    """Raise PtxError unless words of `size` bytes are aligned."""
    if (addresses & (size - 1)).any():
        raise PtxError(f"misaligned: {text}")


class GlobalMemory:
    """Storages of tensors. Access outside of them is an error, even to mapped memory."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in tensors}
        self._storages = [
            Words(torch.empty(0, dtype=torch.uint8).set_(storage).numpy(), start)
            for start, storage in storages.items()
            if storage.nbytes()
        ]
        assert all(words.start % 16 == 0 for words in self._storages)

    def read(self, addresses: Array, size: int, text: str) -> Array:
        """Read words of `size` bytes at addresses[n] int64. Raises PtxError."""
        out = np.empty(len(addresses), WORDS[size])
        for chosen, words, index in self._locate(addresses, size, text):
            out[chosen] = words[index]
        return out

    def write(self, addresses: Array, data: Array, text: str) -> None:
        """Write data[n] words to addresses[n]. Raises PtxError."""
        for chosen, words, index in self._locate(addresses, data.dtype.itemsize, text):
            words[index] = data[chosen]

    def add(self, addresses: Array, numbers: Array, text: str) -> Array:
        """Add numbers[n] one after another -> the value before each addition. Raises PtxError."""
        before = np.empty_like(numbers)
        for chosen, words, index in self._locate(addresses, numbers.dtype.itemsize, text):
            counters = words.view(numbers.dtype)
            for one, place in zip(np.arange(len(numbers))[chosen], index, strict=True):
                before[one] = counters[place]
                counters[place] += numbers[one]
        return before

    def check(self, addresses: Array, size: int, text: str) -> None:
        """Raise PtxError unless these words are in a storage."""
        for _ in self._locate(addresses, size, text):
            pass

    def _locate(self, addresses: Array, size: int, text: str) -> Iterator[tuple[Array | slice, Array, Array]]:
        """Yield, for each storage that contains some of the addresses: their mask, its words and their indices."""
        check_alignment(addresses, size, text)
        for words in self._storages:  # nearly always one storage contains all
            if words.contains_all(addresses, size):
                yield (slice(None), *words.at(addresses, size))
                return
        missing = np.ones(len(addresses), bool)
        for words in self._storages:
            chosen = words.contains(addresses, size)
            if chosen.any():
                yield (chosen, *words.at(addresses[chosen], size))
                missing &= ~chosen
        if missing.any():
            raise PtxError(f"out of bounds in {missing.sum()} threads, at {addresses[missing][0]:#x}: {text}")


class SharedMemory:
    """Shared memory of one block, filled with noise at first. It records for every byte which warp wrote and read it
    since the last barrier. Without a barrier, accesses of another warp may not be visible yet, or may come too late."""

    def __init__(self, size: int, noise: np.random.Generator) -> None:
        self._words = Words(noise.integers(0, 256, size, dtype=np.uint8))
        self._writers, self._readers = map(Words, np.full((2, size), NO_WARP, np.uint8))

    def barrier(self) -> None:
        """Complete all earlier reads and writes."""
        self._writers.data.fill(NO_WARP)
        self._readers.data.fill(NO_WARP)

    def read(self, addresses: Array, size: int, threads: Array, text: str) -> Array:
        """Read words of `size` bytes at addresses[n] int64, each by one of threads[n]. Raises PtxError."""
        self._check(addresses, size, text)
        tags = _tags(threads, size)
        if self._tagged_by_others(self._writers, addresses, tags).any():
            raise PtxError(f"race: reads bytes that another warp wrote, with no barrier between: {text}")
        self._record(self._readers, addresses, tags)
        words, index = self._words.at(addresses, size)
        return words[index]

    def write(self, addresses: Array, data: Array, threads: Array, text: str) -> None:
        """Write data[n] words to addresses[n], each by one of threads[n]. Several threads may write the same value to
        one address at once. Raises PtxError."""
        self.begin_write(addresses, data.dtype.itemsize, threads, text)
        words, index = self._words.at(addresses, data.dtype.itemsize)
        words[index] = data
        if (words[index] != data).any():
            raise PtxError(f"race: threads write different values to one address at once: {text}")

    def begin_write(self, addresses: Array, size: int, threads: Array, text: str) -> None:
        """Reserve words for a copy: other warps may not read or write them from now on. Raises PtxError."""
        self._check(addresses, size, text)
        tags = _tags(threads, size)
        if self._tagged_by_others(self._readers, addresses, tags).any():
            raise PtxError(f"race: writes bytes that another warp read, with no barrier between: {text}")
        if self._tagged_by_others(self._writers, addresses, tags).any():
            raise PtxError(f"race: writes bytes that another warp wrote, with no barrier between: {text}")
        self._record(self._writers, addresses, tags)

    def read_by_matrix_unit(self, addresses: Array, text: str) -> Array:
        """Read 16-bit words at addresses[...] int64 by a matrix unit, for four warps. Raises PtxError."""
        flat = addresses.ravel()
        self._check(flat, 2, text)
        writers, index = self._writers.at(flat, 2)
        if writers[index].any():
            raise PtxError(f"race: reads bytes that were written, with no barrier between: {text}")
        readers, index = self._readers.at(flat, 2)
        readers[index] = SEVERAL_WARPS << 8 | SEVERAL_WARPS
        words, index = self._words.at(addresses, 2)
        return words[index]

    def _check(self, addresses: Array, size: int, text: str) -> None:
        check_alignment(addresses, size, text)
        if not self._words.contains_all(addresses, size):
            raise PtxError(f"out of bounds of {self._words.end} bytes of shared memory: {text}")

    def _tagged_by_others(self, recorded: Words, addresses: Array, tags: Array) -> Array:
        """Return [n, size] bool: bytes that have tags other than tags[n, size]."""
        words, index = recorded.at(addresses, tags.shape[1])
        found = words[index].view(np.uint8).reshape(tags.shape)
        return (found != NO_WARP) & (found != tags)

    def _record(self, recorded: Words, addresses: Array, tags: Array) -> None:
        """Add tags[n, size] to the recorded ones."""
        words, index = recorded.at(addresses, tags.shape[1])
        tags = np.where(self._tagged_by_others(recorded, addresses, tags), SEVERAL_WARPS, tags)
        words[index] = tags.view(words.dtype).ravel()
        # If several warps access one address at once, only the last tag was recorded.
        tags[self._tagged_by_others(recorded, addresses, tags).any(axis=1)] = SEVERAL_WARPS
        words[index] = tags.view(words.dtype).ravel()


def _tags(threads: Array, size: int) -> Array:
    """Return [n, size] uint8: tags of the warps of threads[n], repeated for each byte of a word."""
    return np.repeat((threads // WARP + 1).astype(np.uint8)[:, None], size, axis=1)
