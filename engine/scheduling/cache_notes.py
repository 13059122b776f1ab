"""Comparison of an admitted prompt with the ended answers of its owner: what the cache had of it, and why not more.

An owner without a name is shared by all clients without keys. Its notes have neither requests nor tokens, and positions
in full pages, which the number of cached tokens reveals anyway: with positions of tokens a client could guess another's
prompt token by token.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Container

from engine.cache_note import NOTHING_KNOWN, CacheMiss, CacheNote
from engine.scheduling.cache_losses import CacheLosses, Loss
from engine.scheduling.ended_answers import EndedAnswer, EndedAnswers
from engine.scheduling.sequence import Sequence

COMPARED_ANSWERS = 8  # latest ones of the owner
CONTEXT_TOKENS = 3  # shown before the first differing token, and one less after it


def common_pages(sequence: Sequence, answer: EndedAnswer) -> int:
    """Return the number of full pages of the prompt with which an answer begins.

    Equal digests have equal prefixes. The search gallops, so that it computes no more than twice the common digests.
    """
    limit = min(len(answer.digests), sequence.num_prompt_pages)
    common, stride = 0, 1
    while common < limit:
        page = min(common + stride, limit) - 1
        if answer.digests[page] != sequence.digest(page):
            unequal = range(common, page)
            return common + bisect_left(unequal, True, key=lambda at: answer.digests[at] != sequence.digest(at))
        common, stride = page + 1, 2 * stride
    return common


def common_tokens(sequence: Sequence, answer: EndedAnswer, page_size: int) -> int:
    """Return the number of tokens of the prompt with which an answer begins."""
    start = common_pages(sequence, answer) * page_size
    theirs, ours = answer.tokens, sequence.request.prompt
    for at in range(start, min(start + page_size, len(theirs), len(ours))):
        if theirs[at] != ours[at]:
            return at
    return min(start + page_size, len(theirs), len(ours))


def closest(sequence: Sequence, ended: EndedAnswers, page_size: int) -> tuple[EndedAnswer, int] | None:
    """Return the answer that a prompt continues best, with the number of common tokens; None if there is no answer.

    An older answer than the latest few is found only if the prompt extends it.
    """
    answers = ended.latest(sequence.request.cache_salt, COMPARED_ANSWERS)
    if len(answers) == COMPARED_ANSWERS:
        extended = (ended.by_tail(sequence.digest(page)) for page in reversed(range(sequence.num_prompt_pages)))
        answers += [answer for answer in extended if answer is not None][:1]
    if not answers:
        return None
    common = [common_tokens(sequence, answer, page_size) for answer in answers]
    best = max(range(len(answers)), key=common.__getitem__)
    return answers[best], common[best]


def cache_note(
    sequence: Sequence,
    ended: EndedAnswers,
    losses: CacheLosses,
    page_size: int,
    now: float,
    *,
    host: Container[bytes],
    disk: Container[bytes],
) -> CacheNote:
    """Return the note about a sequence that was admitted for the first time, with its cached tokens as computed.

    host, disk: digests of the pages there.
    """
    found = closest(sequence, ended, page_size)
    if found is None:
        return NOTHING_KNOWN
    prompt = sequence.request.prompt
    answer, common = found
    expected = min(common // page_size, len(answer.digests)) * page_size
    expected = min(expected, len(prompt) - 1)  # the last token is always computed
    cached = min(sequence.num_computed, len(prompt) - 1)
    loss = Loss(CacheMiss.EVICTED)
    if sequence.prompt_logprobs is not None:
        loss = Loss(CacheMiss.LOGPROBS)
    elif cached < expected:
        missing = sequence.digest(cached // page_size)
        if missing in host:
            loss = Loss(CacheMiss.COPY)
        elif missing in disk:
            loss = Loss(CacheMiss.DISK)
        else:
            loss = losses.get(missing) or loss
    lacks = cached < expected
    differs = common < min(len(prompt), len(answer.tokens))
    is_named = bool(answer.owner)
    window = slice(max(0, common - CONTEXT_TOKENS), common + CONTEXT_TOKENS)
    is_shown = is_named and differs
    return CacheNote(
        answer.request_id if is_named else "",
        now - answer.ended_at,
        expected,
        loss.reason if lacks else None,
        loss.beneficiary if lacks else None,
        (common if is_named else common // page_size * page_size) if differs else None,
        tuple(answer.tokens[window]) if is_shown else (),
        prompt[window] if is_shown else (),
    )
