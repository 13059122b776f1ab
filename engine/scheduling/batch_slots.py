"""Batch slots: the sequences that run, by slot, in service order, and counted by class."""

from __future__ import annotations

from bisect import insort

from engine.scheduling.counters import ClassCounts
from engine.scheduling.kv_manager import KVManager
from engine.scheduling.policy import Policy
from engine.scheduling.sequence import Sequence
from engine.types import ServiceClass


class BatchSlots:
    """Slots of one engine. A sequence in a slot has pages, which it loses with the slot."""

    def __init__(self, policy: Policy, kv_manager: KVManager, max_num_seqs: int) -> None:
        self.running: list[Sequence] = []  # in the policy's service order
        self.by_class = ClassCounts()
        self.free = list(range(max_num_seqs - 1, -1, -1))
        self.sequences: list[Sequence | None] = [None] * max_num_seqs
        self._policy = policy
        self._kv_manager = kv_manager

    def take(self, sequence: Sequence) -> int:
        """Give `sequence` a free slot, and return it. The caller notifies the policy of the admission."""
        slot = sequence.slot = self.free.pop()
        self.sequences[slot] = sequence
        insort(self.running, sequence, key=self._policy.service_order)
        self.by_class.add(sequence.service_class, +1)
        return slot

    def change_class(self, sequence: Sequence, service_class: ServiceClass) -> None:
        """Move a running sequence to another class; it keeps its slot."""
        self.running.remove(sequence)
        self.by_class.add(sequence.service_class, -1)
        self._policy.slot_released(sequence)
        sequence.service_class = service_class
        insort(self.running, sequence, key=self._policy.service_order)
        self.by_class.add(service_class, +1)
        self._policy.class_changed(sequence)

    def release(self, sequence: Sequence) -> None:
        """Release slot and pages of `sequence`."""
        assert sequence.slot is not None
        self._kv_manager.release(sequence)
        self.sequences[sequence.slot] = None
        self.free.append(sequence.slot)
        self.running.remove(sequence)
        self.by_class.add(sequence.service_class, -1)
        self._policy.slot_released(sequence)
        sequence.slot = None
