"""What a step moves besides tokens, collected while it is being decided."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from engine.scheduling.batch import Batch, Chunk, Join


class Moves:
    """Collects page moves and slot changes until `build` turns them into a batch.

    Within a step the runner first swaps out, then copies (every source is read before any target is written), then
    begins to swap in, then applies `grown`, then joins. A page given up in a step may therefore be given out again in
    it. Host pages are different: one that is read by a swap-in must not be written by a swap-out of the same step, so
    the scheduler returns `spent_host_pages` to the host pool only when the next one is decided.
    """

    def __init__(self) -> None:
        self.spent_host_pages: list[int] = []
        self._clear()

    def _clear(self) -> None:
        self._swap_out: list[tuple[int, int]] = []
        self._copies: list[tuple[int, int]] = []
        self._swap_in: list[tuple[int, int]] = []
        self._grown: list[tuple[int, int, int]] = []
        self._joins: list[Join] = []
        self.joined: set[int | None] = set()  # slots filled in the step: their pages are not written yet

    def swap_out(self, pages: Seq[int], host_pages: Seq[int]) -> None:
        """Device pages go to host memory."""
        self._swap_out += zip(pages, host_pages, strict=True)

    def cancel_swap_out(self, host_pages: Seq[int]) -> None:
        """Who was to be kept is gone; its host pages may be somebody else's by the time of the step."""
        gone = set(host_pages)
        self._swap_out = [move for move in self._swap_out if move[1] not in gone]

    def swap_in(self, host_pages: Seq[int], pages: Seq[int]) -> None:
        """Host pages come back to the device."""
        self._swap_in += zip(host_pages, pages, strict=True)
        self.spend(host_pages)

    def spend(self, host_pages: Seq[int]) -> None:
        """Nobody needs what these host pages hold, once the step is under way."""
        self.spent_host_pages += host_pages

    def copy(self, source: int, target: int) -> None:
        """Copy-on-write: `target` becomes a private copy of the shared page `source`."""
        self._copies.append((source, target))

    def grow(self, slot: int, index: int, page: int) -> None:
        """Entry `index` of the page table in `slot` is `page`."""
        self._grown.append((slot, index, page))

    def join(self, join: Join) -> None:
        """A sequence enters a slot."""
        self._joins.append(join)
        self.joined.add(join.slot)

    def build(self, step: int, decodes: Seq[int], chunks: Seq[Chunk]) -> Batch:
        """The step's batch. Starts collecting for the next one."""
        batch = Batch(
            step=step,
            swap_out=tuple(self._swap_out),
            copies=tuple(self._copies),
            swap_in=tuple(self._swap_in),
            joins=tuple(self._joins),
            grown=tuple(self._grown),
            decodes=tuple(decodes),
            chunks=tuple(chunks),
        )
        self._clear()
        return batch
