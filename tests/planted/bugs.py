"""The bugs: one for each part of the system whose faults are silent, such as wrong text or a leak."""

from __future__ import annotations

from typing import NamedTuple


class Bug(NamedTuple):
    """A replacement in one file, and the tests of which at least one must fail. `old` occurs once in the file."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


SCHEDULING = (  # histories of fixed seeds first, since hypothesis takes minutes to shrink a failing one
    "tests/engine/scheduling/test_chaos.py",
    "tests/engine/scheduling/test_scheduler_machine.py",
)
SPECULATION = ("tests/engine/scheduling/test_speculation.py",)
KERNELS = "tests/kernels/test_"

BUGS = (
    Bug(
        "scheduler-length",
        "engine/scheduling/scheduler.py",
        "if len(tokens) >= sequence.max_len or token_id in sequence.stop_ids:",
        "if len(tokens) > sequence.max_len or token_id in sequence.stop_ids:",
        SCHEDULING,
    ),
    Bug(
        "scheduler-trial-in-flight",
        "engine/scheduling/trials.py",
        "self.is_draining = is_over and is_in_flight and chosen != self.current",
        "self.is_draining = False and is_in_flight",
        ("tests/engine/scheduling/test_trials.py",),
    ),
    Bug(
        "scheduler-reclaimed-pages",
        "engine/scheduling/kv_manager.py",
        "self.count += dropped == self._pool.references(page)",
        "self.count += 1",
        SCHEDULING,
    ),
    Bug(
        "scheduler-recompute",
        "engine/scheduling/scheduler.py",
        "        else:\n            sequence.num_computed = 0\n",
        "        else:\n            sequence.num_computed = min(sequence.num_computed, 1)\n",
        SCHEDULING,
    ),
    Bug(
        "pages-copy",
        "engine/scheduling/kv_manager.py",
        "self._batch_builder.copy(reused[-1], table[-1])",
        "self._batch_builder.copy(table[-1], table[-1])",
        SCHEDULING,
    ),
    Bug(
        "pages-eviction",
        "engine/scheduling/pages.py",
        "page, _ = cached.popitem(last=False)",
        "page, _ = cached.popitem(last=True)",
        ("tests/engine/scheduling/test_pages.py",),
    ),
    Bug(
        "session-host-order",
        "engine/scheduling/kv_manager.py",
        "return [self._taken[digest] for digest in digests]",
        "return [self._taken[digest] for digest in digests][::-1]",
        ("tests/engine/scheduling/test_sessions.py",),
    ),
    Bug(
        "drafts-one-too-many",
        "engine/execution/drafted_rows.py",
        "further[len(first)] = tuple(tokens[1 : 1 + right])",
        "further[len(first)] = tuple(tokens[1 : 2 + right])",
        ("tests/engine/execution/test_accepted.py",),
    ),
    Bug(
        "drafts-published-page",
        "engine/scheduling/speculation.py",
        "publish(sequence, sequence.page_table, len(sequence.tokens))",
        "publish(sequence, sequence.page_table, len(sequence.tokens) + 1)",
        SPECULATION,
    ),
    Bug(
        "drafts-pages-ahead",
        "engine/scheduling/speculation.py",
        "sequence.num_tokens - sequence.drafts_in_flight",
        "sequence.num_tokens",
        SPECULATION,
    ),
    Bug(
        "drafts-position-of-noise",
        "kernels/cpu/source/step.cpp",
        "positions[i] += rows.offsets[own[i]];",
        "positions[i] += rows.offsets[own[i]] != 0;",
        ("tests/engine/models/test_drafted_steps.py",),
    ),
    Bug(
        "drafts-in-grammar",
        "engine/constraints/constraint.py",
        "self._matcher.rollback(len(tokens))",
        "self._matcher.rollback(max(0, len(tokens) - 1))",
        ("tests/engine/constraints/test_drafts.py",),
    ),
    Bug(
        "drafts-mask-of-first-row",
        "engine/execution/token_masks.py",
        "index[rows] + offsets[rows]",
        "index[rows]",
        ("tests/engine/models/test_drafted_steps.py",),
    ),
    Bug(
        "drafts-prediction-place",
        "engine/drafting/prediction.py",
        "while 0 <= place < self._searched_from:",
        "while 0 <= place <= self._searched_from:",
        ("tests/engine/drafting/test_prediction.py",),
    ),
    Bug(
        "drafts-in-text",
        "engine/scheduling/speculation.py",
        "                yield sequence, sampled\n",
        "                yield sequence, Sampled(1 + sampled.token_id)\n",
        SPECULATION,
    ),
    Bug(
        "sampler-nucleus",
        "kernels/reference/sample.py",
        "needed = (mass[:, :-1] < top_p.unsqueeze(1) * mass[:, -1:]).sum(dim=-1)",
        "needed = (mass < top_p.unsqueeze(1) * mass[:, -1:]).sum(dim=-1) - 1",
        (f"{KERNELS}sample.py",),
    ),
    Bug(
        "cpu-noise-bound",
        "kernels/cpu/source/sample.cpp",
        "constexpr float MAX_NOISE = 23.0f;",
        "constexpr float MAX_NOISE = 6.0f;",
        (f"{KERNELS}sample.py",),
    ),
    Bug(
        "cpu-norm-epsilon",
        "kernels/cpu/source/norm.cpp",
        "total[lane] / float(size) + eps);",
        "total[lane] / float(size));",
        (f"{KERNELS}cpu.py",),
    ),
    Bug(
        "triton-prefill-window",
        "kernels/triton/prefill_attention.py",
        "(positions[None, :] > query_positions[:, None] - window)",
        "(positions[None, :] >= query_positions[:, None] - window)",
        (f"{KERNELS}attention.py",),
    ),
    Bug(
        "triton-mask-bits",
        "kernels/triton/mask.py",
        "words + slot * tl.cdiv(V, 32) + columns // 32",
        "words + slot * (V // 32) + columns // 32",
        (f"{KERNELS}mask_logits.py",),
    ),
    Bug(
        "streams-sequence",
        "app/streams/stream_log.py",
        "enumerate(records, after + 1)",
        "enumerate(records, after)",
        ("tests/app/streams",),
    ),
    Bug(
        "streams-refused-write",
        "app/streams/tail.py",
        "if not piece or self._write(piece):",
        "if not piece or self._write(piece) is not None:",
        ("tests/app/streams", "tests/app/http/test_sse.py"),
    ),
    Bug(
        "detokenizer-pending",
        "app/text/detokenizer.py",
        "pending = min(3, len(text)",
        "pending = min(0, len(text)",
        ("tests/app/text/test_detokenizer.py",),
    ),
    Bug(
        "stop-overlap",
        "app/text/detokenizer.py",
        "range(min(len(stop) - 1, len(self._held)), 0, -1)",
        "range(min(len(stop) - 2, len(self._held)), 0, -1)",
        ("tests/app/text/test_detokenizer.py",),
    ),
    Bug(
        "protocol-stop-reason",
        "app/protocols/anthropic_encoder.py",
        'delta = {"stop_reason": reason, "stop_sequence": sequence}',
        'delta = {"stop_reason": None, "stop_sequence": sequence}',
        ("tests/app/protocols/test_anthropic.py",),
    ),
    Bug(
        "admission-bound",
        "app/admission/queues.py",
        "if requests < max_requests and not too_long:",
        "if requests <= max_requests and not too_long:",
        ("tests/app/admission/test_queues.py",),
    ),
    Bug(
        "schema-range",
        "app/text/schemas/numbers.py",
        '_of_equal_length(low[at + 1 :], "9" * rest))',
        '_of_equal_length(low[at + 1 :], "8" * rest))',
        ("tests/app/text/schemas",),
    ),
    Bug(
        "schema-exclusive",
        "app/text/schemas/merging.py",
        'math.floor(node.pop("exclusiveMinimum")) + 1',
        'math.ceil(node.pop("exclusiveMinimum"))',
        ("tests/app/text/schemas",),
    ),
    Bug(
        "tools-space-before-call",
        "app/text/tools/call_parser.py",
        "if self._is_plain and text and not text[-1].isspace() and self._plain.fullmatch(text):",
        "if self._is_plain and text and self._plain.fullmatch(text):",
        ("tests/app/text/tools/test_corpus.py", "tests/app/text/tools/test_any_text.py"),
    ),
    Bug(
        "page-rows-writer",
        "app/store/page_part.py",
        "if known is None or (row.revision, row.writer) > known:",
        "if known is None or row.revision > known[0]:",
        ("tests/app/store/test_page_rows.py",),
    ),
    Bug(
        "page-sse-comment",
        "static/js/sse.js",
        "if (colon === 0) return",
        "if (colon === 1) return",
        ("tests/e2e/test_page_units.py",),
    ),
)
