"""ModelRunner: executes batches. Each step moves pages, packs tokens, runs the forward pass and samples, in this order.

On a CPU everything except the page moves is one call; rows that need more than filters are then sampled from logits
that it returns. On a GPU the sampled tokens stay on the device, where the next step reads them; the host receives them
on request. A step can therefore be launched while the previous one is computed, and no code here may wait for the
device (`engine.execution.transfer`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from engine.execution.cache import KVCache
from engine.execution.device_slots import DeviceSlots
from engine.execution.drafted_rows import SampledRows, accepted
from engine.execution.graphs import Capture, PromptTokens, ReplayedStep, Shape, StepGraphs
from engine.execution.models.interface import Model
from engine.execution.packing import pack, prompt_tokens
from engine.execution.pending_step import DraftsInFlight, PendingStep
from engine.execution.prompt_logprobs import PromptLogProbs, has_prompt_logprobs, prompt_log_probs
from engine.execution.sampler import SampledTokens, Sampler, SamplerInputs
from engine.execution.slots import Ints, SlotState
from engine.execution.swap import PageSwapper
from engine.execution.token_masks import StepMasks, TokenMasks
from engine.execution.transfer import HostCopy, mark_time, to_device
from engine.scheduling.batch import Batch, Sampled, StepOutcome
from kernels.decoder import RowMasks, StepPass
from kernels.interface import Kernels
from kernels.reference.accept import store_last
from kernels.reference.sample import NAN_TOKEN
from kernels.slots import StepState

MAX_DRAFT_ROWS = 1 << 16  # of a step that is not recorded, more than any has
PREFAULT_BYTES = 256 << 20  # of fresh pages kept ready for new sequences
PREFAULT_STEP_BYTES = (
    2 << 20
)  # bytes prefaulted at a time; takes 5 ms if a virtual machine's memory is new to its host too


class ModelRunner:
    """KV cache and slot state of one model on one device."""

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        kernels: Kernels,
        slots: int,
        max_len: int,
        capture: Capture | None = None,
        *,
        has_drafts: bool = True,
    ) -> None:
        """Prepare a runner; `capture` records steps. has_drafts: False if no step will have drafts.

        Without `capture` no step is recorded: supported steps run as one fused call, others operation by operation.
        """
        self._model = model
        self._cache = cache
        self._swap = PageSwapper(cache)
        self._kernels = kernels
        self._slots = SlotState(slots, max_len, cache.page_size)
        self._num_prefaulted = 0  # pages below this one are backed by memory
        # The last entry is the padding slot's.
        self._last_tokens = torch.zeros(slots + 1, dtype=torch.int64, device=model.device)
        self._sampler = Sampler(self._slots, kernels, model.vocab_size, model.device)
        self._masks = TokenMasks(slots, model.vocab_size, model.device)
        self._graphs: StepGraphs | None = None
        self._fused_step: StepPass | None = None
        self.fused_steps = 0  # steps that ran as one call
        self._last_results: HostCopy | None = None  # results of the last launch
        self._was_idle = True
        # On a CPU a row's bits may depend on the other rows: see `kernels.linear`, and `--batch-invariant`.
        self._has_drafts = has_drafts and model.is_native and (self.runs_ahead or model.dtype == torch.float32)
        if capture is not None:
            # Drafts on a device are looked up there, since its next step is launched before the host reads a token.
            slots_on_device = DeviceSlots(
                self._slots, self._last_tokens, has_tokens=self.runs_ahead and self._has_drafts
            )
            self._graphs = StepGraphs(
                model, cache, kernels, slots_on_device, max_len, capture, has_drafts=self._has_drafts
            )
        else:
            state = StepState(self._slots, self._last_tokens, cache.layers)
            self._fused_step = model.prepare_step(state, kernels)

    def record(self, progress: Callable[[int, int], None]) -> None:
        """Record steps, if recording is enabled."""
        if self._graphs:
            self._graphs.record(progress)

    @property
    def has_recordings(self) -> bool:
        """Return whether a step has been recorded."""
        return self._graphs is not None and self._graphs.has_recordings

    @property
    def runs_ahead(self) -> bool:
        """Return whether steps run asynchronously, as on a GPU."""
        return self._model.device.type == "cuda"

    @property
    def max_draft_rows(self) -> int:
        """See `engine.engine.Runner`. The slots that a GPU has advanced are known in recorded steps only."""
        if self.runs_ahead:
            return self._graphs.max_draft_rows if self._graphs else 0
        return MAX_DRAFT_ROWS if self._fused_step is not None or self._has_drafts else 0

    @property
    def recorded_tokens(self) -> int:
        """Return the largest number of rows and prompt tokens of a recorded step, which is one pass over the weights.

        Of a larger step only the decode rows are recorded. 0: no step is recorded.
        """
        return self._graphs.max_rows if self._graphs else 0

    @property
    def device_was_idle(self) -> bool:
        """See `engine.engine.Runner`."""
        return self._was_idle

    def launch(self, batch: Batch) -> Callable[[], StepOutcome]:
        """Launch one step."""
        began = mark_time(self._model.device)
        if self._swap.is_swapping_in or batch.swap_out or batch.copies or batch.swap_in or batch.joins:
            self._prepare(batch)
        self._slots.apply(batch)
        if self._fused_step and not has_prompt_logprobs(batch):
            run = self._run_with_drafts if batch.drafted else self._run_fused
            outcome = run(self._fused_step, batch)
            return lambda: outcome
        return self._launch(batch, began)

    @torch.inference_mode()
    def _prepare(self, batch: Batch) -> None:
        """Move pages in the order explained in `engine.scheduling.batch_builder`, and set up joining sequences."""
        self._swap.finish()
        if batch.swap_out:
            self._swap.swap_out(batch.swap_out)
        if batch.copies:
            self._cache.copy_pages(*zip(*batch.copies, strict=True))
        if batch.swap_in:
            self._swap.swap_in(batch.swap_in)
        if batch.joins:
            self._sampler.join(batch.joins)
            slots = np.array([join.slot for join in batch.joins], np.int64)
            last = np.array([join.tokens[-1] for join in batch.joins], np.int64)
            self._last_tokens.index_copy_(0, *to_device((slots, last), self._model.device))

    def _run_fused(self, fused_step: StepPass, batch: Batch) -> StepOutcome:
        """Run a step in one call; rows that need the full sampler are then sampled here, from logits of that call."""
        self.fused_steps += 1
        masks = self._masks.collect(batch.constraints)
        rows, row_masks = self._full_sampler_rows(batch.sampled_slots, masks)
        if not len(rows):
            result = fused_step(batch.decodes, batch.chunks, (), row_masks)
            return StepOutcome(tuple(map(Sampled, result.token_ids)), tuple(result.has_nan))
        slots = np.array(batch.sampled_slots, np.int64)[rows]
        with torch.inference_mode():
            parameters = self._sampler.parameters(slots)  # before the step, which evicts them from the caches
            result = fused_step(batch.decodes, batch.chunks, rows.tolist(), row_masks)
            tokens = self._sample(result.logits, parameters, slots, masks)
        self._slots.advance(slots)
        sampled = list(map(Sampled, result.token_ids))
        for row, token in zip(rows.tolist(), tokens.read(tokens.tensors), strict=True):
            sampled[row] = token
        return StepOutcome(tuple(sampled), tuple(result.has_nan))

    def _run_with_drafts(self, fused_step: StepPass, batch: Batch) -> StepOutcome:
        """Run a step with drafts. Slots with a NaN in their first row are computed again without them."""
        self.fused_steps += 1
        rows, drafted = SampledRows.of(batch), batch.drafted
        masks = self._masks.collect(batch.constraints, {c.slot: len(c.drafts) for c in drafted})
        withheld, row_masks = self._full_sampler_rows(batch.sampled_rows, masks, rows.offsets)
        with torch.inference_mode():
            result = fused_step(batch.decodes, batch.chunks, withheld.tolist(), row_masks)
            sampled = list(map(Sampled, result.token_ids))
            if len(withheld):
                self._sample_withheld(rows, withheld, result.logits, masks, sampled)
        first, further = accepted(sampled, drafted)
        begin = len(first) - len(drafted)
        if spoiled := [index for index in range(begin, len(first)) if first[index].token_id == NAN_TOKEN]:
            slots = tuple(drafted[index - begin].slot for index in spoiled)
            constraints = tuple(pair for pair in batch.constraints if pair[0] in slots)
            again = self._run_fused(fused_step, Batch(step=batch.step, decodes=slots, constraints=constraints))
            for index, token in zip(spoiled, again.sampled, strict=True):
                first[index] = token
        return StepOutcome(tuple(first), tuple(result.has_nan), further=further)

    def _sample_withheld(
        self, rows: SampledRows, withheld: Ints, logits: Tensor, masks: StepMasks | None, sampled: list[Sampled]
    ) -> None:
        """Sample the withheld rows, all or none of a slot, from logits[N, V] with the full sampler.

        A slot with a NaN in its first row, which may be that of a draft, gets no token and does not advance.
        """
        offsets = rows.offsets[withheld]
        has_drafts = np.append(rows.offsets[1:], 0)[withheld - offsets] > 0
        is_spoiled = has_drafts & logits.amax(dim=1).isnan().numpy()[np.arange(len(withheld)) - offsets]
        for row in withheld[is_spoiled]:
            sampled[row] = Sampled(NAN_TOKEN)
        chosen = withheld[~is_spoiled]
        if not len(chosen):
            return
        rows = rows.select(chosen)
        parameters = self._sampler.parameters(rows.slots, rows)
        tokens = self._sample(logits[torch.from_numpy(~is_spoiled)], parameters, rows.slots, masks, rows.offsets)
        assert tokens.counted is not None
        self._slots.advance_by(rows.slots, tokens.counted.is_counted.numpy().astype(np.int64))
        for row, token in zip(chosen.tolist(), tokens.read(tokens.tensors), strict=True):
            sampled[row] = token

    def _full_sampler_rows(
        self, slots: list[int], masks: StepMasks | None, offsets: Ints | None = None, *, whole_slots: bool = True
    ) -> tuple[Ints, RowMasks | None]:
        """Return the rows of slots[R] that need the full sampler, and the masks of other rows.

        offsets[R]: drafts before each row, if there are any. The full sampler reports rows without an allowed token.
        whole_slots: it then samples all rows of their slots.
        """
        rows = self._slots.needs_full_sampler(slots)
        if masks is None:
            return rows, None
        row_masks, empty = masks.row_masks(np.array(slots, np.int64), offsets)
        rows = np.union1d(rows, empty)
        if len(empty) and offsets is not None and whole_slots:
            slot_ids = np.array(slots, np.int64)
            rows = np.flatnonzero(np.isin(slot_ids, slot_ids[rows]))
        if len(rows):
            keep = ~np.isin(row_masks.rows, rows)
            row_masks = RowMasks(row_masks.rows[keep], row_masks.words[keep])
        return rows, row_masks

    def _sample(
        self,
        logits: Tensor,
        parameters: SamplerInputs,
        slots: Ints,
        masks: StepMasks | None,
        offsets: Ints | None = None,
    ) -> SampledTokens:
        """Sample logits[R, V] of slots[R] with the full sampler and store the slots' last tokens.

        offsets[R]: drafts before each row, if there are any.
        """
        allowed = masks.allowed(slots, offsets) if masks is not None else None
        tokens = self._sampler.sample(logits, parameters, allowed)
        if tokens.counted is not None:
            store_last(self._last_tokens, tokens.slots, tokens.token_ids, tokens.counted)
        else:  # the token of a row that fails does not matter
            self._last_tokens.index_copy_(0, tokens.slots, tokens.token_ids.clamp(min=0))
        return tokens

    @torch.inference_mode()
    def _launch(self, batch: Batch, began: torch.cuda.Event | None) -> Callable[[], StepOutcome]:
        """Replay the recorded part of a step, and launch the rest operation by operation."""
        sampled_parts: list[SampledTokens] = []
        prompt_parts: list[PromptLogProbs] = []
        has_nan: list[Tensor] = []  # for each row of the chunks, whether it has a NaN
        masks = self._masks.collect(batch.constraints, {chunk.slot: chunk.num_drafts for chunk in batch.drafted})
        rows = [0 if chunk.samples > 1 else chunk.length for chunk in batch.chunks]
        rest, replayed = batch, None
        if self._graphs:
            self._graphs.slots.apply(batch)
            # Recordings do not return the hidden states of prompts.
            is_apart = has_prompt_logprobs(batch) or not self._can_record_drafts(batch)
            apart = batch.chunks if is_apart else ()
            recordable = replace(batch, chunks=()) if apart else batch
            rest, replayed = self._replay(self._graphs, recordable, sampled_parts, has_nan, masks)
            if apart:
                rest = replace(rest, chunks=apart)
            if not rest.chunks:
                rows = [chunk.length - chunk.samples for chunk in batch.chunks]
        if rest.num_tokens:
            prompt_parts = self._compute(rest, sampled_parts, has_nan, masks)
        tensors = [*has_nan, *(tensor for part in sampled_parts for tensor in part.tensors)]
        tensors += [tensor for part in prompt_parts for tensor in part.tensors]
        drafted = DraftsInFlight(batch.drafted, self._slots, replayed) if batch.drafted else None
        tensors += drafted.tensors if drafted is not None else ()
        self._was_idle = self._last_results is None or self._last_results.is_complete
        self._last_results = HostCopy(tensors, self._model.device, began)
        rows_checked = tuple(rows) if has_nan else ()
        return PendingStep(self._last_results, sampled_parts, rows_checked, prompt_parts, drafted)

    def swapped_out(self) -> Callable[[], None]:
        """See `engine.engine.Runner`."""
        return self._swap.swapped_out()

    def prefault_pages(self, pages: int) -> bool:
        """See `engine.engine.Runner`. A GPU's cache is backed by memory from the beginning."""
        page_bytes = self._cache.data[0].nbytes
        first, last = max(pages, self._num_prefaulted), min(self._cache.num_pages, pages + PREFAULT_BYTES // page_bytes)
        if first >= last or self._cache.device.type != "cpu":
            return False
        self._num_prefaulted = min(last, first + -(-PREFAULT_STEP_BYTES // page_bytes))
        self._cache.data[first : self._num_prefaulted].zero_()
        return True

    def _replay(
        self,
        graphs: StepGraphs,
        batch: Batch,
        sampled_parts: list[SampledTokens],
        has_nan: list[Tensor],
        masks: StepMasks | None,
    ) -> tuple[Batch, ReplayedStep | None]:
        """Replay the whole step or only the rows of `Batch.decodes`, if there is a recording; return the rest.

        Rows that need more than the recording's sampler are sampled again from the same hidden states: those with
        edits or log-probabilities, and those without an allowed token, which the full sampler reports.
        """
        slots, prompts, rest, shape = batch.sampled_rows, None, Batch(step=batch.step), None
        sampled, drafted = np.array(slots, np.int64), SampledRows.of(batch) if batch.drafted else None
        if batch.num_tokens <= graphs.max_rows:
            prompts = prompt_tokens(batch.chunks, len(slots), self._slots)
            shape = self._find_recording(graphs, sampled, prompts, drafted)
        if shape is None:
            slots, prompts, drafted, rest = list(batch.decodes), None, None, replace(batch, decodes=())
            sampled = np.array(slots, np.int64)
            shape = self._find_recording(graphs, sampled, prompts, drafted)
        if shape is None:
            return batch, None
        if drafted is None:
            rows, row_masks = self._full_sampler_rows(slots, masks)
            replayed = graphs.run(shape, sampled, prompts, row_masks)
            tokens = replayed.tokens
        else:  # drafts end where no token is allowed, so that their slots advance by those that are
            needed, row_masks = self._full_sampler_rows(slots, masks, drafted.offsets, whole_slots=False)
            drafted = drafted.without_drafts_from(needed)
            replayed = graphs.run(shape, sampled, prompts, row_masks, drafted)
            rows, behind = needed[drafted.offsets[needed] == 0], needed[drafted.offsets[needed] > 0]
            tokens = replayed.tokens.without(behind)
        if len(rows):
            (row_index,) = to_device((rows,), self._model.device)
            logits = self._model.compute_logits(replayed.hidden[row_index])
            resampled = self._sample(logits, self._sampler.parameters(sampled[rows]), sampled[rows], masks)
            tokens = tokens.with_rows(rows, row_index, resampled)
            graphs.slots.replace_last(resampled.slots, resampled.token_ids)
        self._slots.advance(sampled)  # once each, as a further row is counted when its token is known to be right
        sampled_parts.append(tokens)
        if prompts:
            has_nan.append(replayed.has_nan)
        return rest, replayed

    def _can_record_drafts(self, batch: Batch) -> bool:
        """Return whether recordings support the drafts of a step: beside no prompt, none for the full sampler."""
        slots = [chunk.slot for chunk in batch.drafted]
        return not slots or (len(slots) == len(batch.chunks) and not len(self._slots.needs_full_sampler(slots)))

    def _find_recording(
        self, graphs: StepGraphs, sampled: Ints, prompts: PromptTokens | None, drafted: SampledRows | None
    ) -> Shape | None:
        """Return a recording for these rows, if there is one."""
        contexts = self._slots.lengths[sampled] + self._slots.drafts_in_flight[sampled]
        if drafted is not None:
            contexts += drafted.offsets
        rows, longest, tiles = len(sampled), int(contexts.max(initial=1)), 0
        if prompts:
            rows, longest = rows + len(prompts.slots), max(longest, 1 + int(prompts.positions.max()))
            tiles = len(prompts.tiles)
        if not rows:
            return None
        filtered = self._slots.are_filtered(sampled)
        return graphs.find(rows, longest, filtered, tiles, has_drafts=drafted is not None)

    def _compute(
        self, batch: Batch, sampled_parts: list[SampledTokens], has_nan: list[Tensor], masks: StepMasks | None
    ) -> list[PromptLogProbs]:
        """Launch a step operation by operation. Returns the requested log-probabilities of prompt tokens."""
        drafted = SampledRows.of(batch) if batch.drafted else None
        inputs = pack(batch, self._slots, self._last_tokens, self._cache.page_size, drafted)
        sampled = np.array(batch.sampled_slots, np.int64)
        sampled_rows = sampled if drafted is None else drafted.slots
        # Before the forward pass, which evicts the slots' parameters from the caches.
        parameters = self._sampler.parameters(sampled_rows, drafted) if len(sampled) else None
        hidden = self._model.forward(inputs, self._cache, self._kernels)
        if batch.chunks:  # check all rows: after a NaN, rows beyond a sliding window are finite again
            has_nan.append(hidden[inputs.num_decodes :].amax(dim=1).isnan())  # the maximum of a row with NaN is NaN
        prompt_parts = prompt_log_probs(batch, self._slots, hidden, self._model, self._kernels)
        if parameters is None:
            return prompt_parts
        if inputs.logit_rows is not None:
            hidden = hidden[inputs.logit_rows]
        offsets = drafted.offsets if drafted is not None else None
        tokens = self._sample(self._model.compute_logits(hidden), parameters, sampled_rows, masks, offsets)
        self._slots.advance(sampled)
        if self._graphs:
            self._graphs.slots.advance(tokens.slots, tokens.token_ids, tokens.counted)
        sampled_parts.append(tokens)
        return prompt_parts
