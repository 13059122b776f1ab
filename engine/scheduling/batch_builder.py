"""Page moves and slot changes of one step, collected while the step is being scheduled."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from engine.scheduling.batch import Batch, Chunk, Join
from engine.scheduling.constraint import Constraint


class BatchBuilder:
    """Page moves and slot changes, collected until `build` turns them into a batch.

    Within a step the runner first swaps out, then copies (every source is read before any target is written), then
    begins to swap in, then applies `grown`, then joins. A page released in a step may therefore be reused in the same
    step. Host pages are different: a page that a swap-in reads must not be written by a swap-out of the same step. The
    scheduler therefore returns `host_pages_to_release` to the host pool only when it schedules the next step.
    """

    def __init__(self) -> None:
        self.host_pages_to_release: list[int] = []
        self._clear()

    def _clear(self) -> None:
        self._swap_out: list[tuple[int, int]] = []
        self._copies: list[tuple[int, int]] = []
        self._swap_in: list[tuple[int, int]] = []
        self._grown: list[tuple[int, int, int]] = []
        self._joins: list[Join] = []
        self.joined_slots: set[int | None] = set()  # slots filled in the step: their pages are not written yet

    def swap_out(self, pages: Seq[int], host_pages: Seq[int]) -> None:
        """Copy device pages to host memory."""
        self._swap_out += zip(pages, host_pages, strict=True)

    def cancel_swap_out(self, host_pages: Seq[int]) -> None:
        """Cancel the swap-out of a sequence that has ended.

        By the time of the step its host pages may belong to another sequence.
        """
        cancelled = set(host_pages)
        self._swap_out = [move for move in self._swap_out if move[1] not in cancelled]

    def swap_in(self, host_pages: Seq[int], pages: Seq[int]) -> None:
        """Copy host pages back to the device; several device pages may have one source."""
        self._swap_in += zip(host_pages, pages, strict=True)

    def release_later(self, host_pages: Seq[int]) -> None:
        """Release host pages once the step has been launched."""
        self.host_pages_to_release += host_pages

    def copy(self, source: int, target: int) -> None:
        """Copy-on-write: make `target` a private copy of the shared page `source`."""
        self._copies.append((source, target))

    def grow(self, slot: int, index: int, page: int) -> None:
        """Set entry `index` of the page table in `slot` to `page`."""
        self._grown.append((slot, index, page))

    def join(self, join: Join) -> None:
        """Put a sequence into a slot."""
        self._joins.append(join)
        self.joined_slots.add(join.slot)

    def build(
        self,
        step: int,
        decodes: Seq[int],
        chunks: Seq[Chunk],
        constraints: tuple[tuple[int, Constraint], ...] = (),
    ) -> Batch:
        """Return the step's batch and start collecting for the next one."""
        batch = Batch(
            step=step,
            swap_out=tuple(self._swap_out),
            copies=tuple(self._copies),
            swap_in=tuple(self._swap_in),
            joins=tuple(self._joins),
            new_pages=tuple(self._grown),
            decodes=tuple(decodes),
            chunks=tuple(chunks),
            constraints=constraints,
        )
        self._clear()
        return batch
