"""Judge an exported model on prompts that training never saw: python -m models.demo.judge models/demo --each 40

Owns the checks and their pass rates. An answer is judged by a rule, never by taste: a sum must be exact, a table
must be a table, a program must compile, a story must end by itself and keep to its subject.
"""

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from models.demo.corpus import (
    arithmetic,
    chat,
    conversations,
    echoes,
    engine_talk,
    facts,
    markdown,
    poems,
    programs,
    stories,
)
from models.demo.corpus.conversations import Message
from models.demo.corpus.writer import Exchange, Redraw, Writer

BATCH = 16
Check = Callable[["Reply", Exchange], bool]


@dataclass(frozen=True)
class Reply:
    text: str
    tokens: int
    ended: bool  # by the end token, and not by the limit


@dataclass(frozen=True)
class Case:
    kind: str
    messages: tuple[Message, ...]
    expected: Exchange
    limit: int


def exact(reply: Reply, expected: Exchange) -> bool:
    return reply.text == expected.answer


def holds_row(reply: Reply, expected: Exchange) -> bool:
    """The very numbers asked for, and no others."""
    return re.findall(r"\d+", reply.text) == re.findall(r"\d+", expected.answer)


def is_table(reply: Reply, expected: Exchange) -> bool:
    """A header, a separator row, and rows of one width; and the header that was asked for."""
    lines = [line for line in reply.text.splitlines() if line.startswith("|")]
    header = next(line for line in expected.answer.splitlines() if line.startswith("|"))
    return (len(lines) > 2 and lines[0] == header and re.fullmatch(r"\|( --- \|)+", lines[1]) is not None
            and len({line.count("|") for line in lines}) == 1)  # fmt: skip


def is_code_block(reply: Reply, expected: Exchange) -> bool:
    """One closed fence of the language asked for; Python must compile."""
    fence = re.search(r"```(\w+)\n(.*?)\n```", reply.text, re.DOTALL)
    if fence is None or reply.text.count("```") != 2:
        return False
    if fence[1] == "python":
        try:
            compile(fence[2], "reply", "exec")
        except SyntaxError:
            return False
    return fence[1] == fence_language(expected)


def is_program(reply: Reply, expected: Exchange) -> bool:
    """A code block, and the program that was asked for: its closing remark is the right one."""
    return is_code_block(reply, expected) and reply.text.splitlines()[-1] == expected.answer.splitlines()[-1]


def fence_language(expected: Exchange) -> str:
    fence = re.search(r"```(\w+)", expected.answer)
    assert fence is not None, "an answer about code has a fence"
    return fence[1]


def is_story(reply: Reply, expected: Exchange) -> bool:
    """Long enough, and about the subject of the request: the story names it."""
    return reply.tokens > 200 and re.search(rf"\b{expected.subject}\b", reply.text) is not None


def is_explanation(reply: Reply, expected: Exchange) -> bool:
    """Defines the topic that was asked about."""
    for topic in engine_talk.TOPICS:
        if any(what in expected.answer for what in topic.what):
            return any(what in reply.text for what in topic.what)
    return False


def is_list(reply: Reply, expected: Exchange) -> bool:
    """Has as many kinds of items as were asked for, in the form that was asked for."""
    marks = re.findall(r"^(-|\d+\.) \S", reply.text, re.MULTILINE)
    return len(marks) >= 2 and reply.text.splitlines()[0].split()[:2] == expected.answer.splitlines()[0].split()[:2]


def is_haiku(reply: Reply, expected: Exchange) -> bool:
    return len(reply.text.splitlines()) == 3


def greets(reply: Reply, expected: Exchange) -> bool:
    return reply.text.startswith(("Hello", "Hi"))


def is_honest(reply: Reply, expected: Exchange) -> bool:
    return "demonstration model" in reply.text or "small language model" in reply.text


def refuses_sum(reply: Reply, expected: Exchange) -> bool:
    return "one-digit numbers" in reply.text


def normal_story(w: Writer) -> Exchange:
    while True:
        told = stories.about(w)
        if told.answer.startswith("**"):  # a short one has no title
            return told


def finite_fact(w: Writer) -> Exchange:
    return w.pick(
        (
            facts.capital_city,
            facts.opposite,
            facts.colour,
            facts.calendar,
            facts.translation,
            facts.plural,
            facts.general,
        )
    )(w)


# kind: (who writes the prompt, how the reply is judged, how many tokens it may take)
KINDS: dict[str, tuple[Callable[[Writer], Exchange], Check, int]] = {
    "sums": (arithmetic.sums, exact, 24),
    "counting": (
        lambda w: w.pick((arithmetic.counting, arithmetic.counting_down, arithmetic.counting_by))(w),
        holds_row,
        220,
    ),
    "large sums refused": (arithmetic.too_large, refuses_sum, 60),
    "facts": (finite_fact, exact, 60),
    "explanations": (engine_talk.explanation, is_explanation, 320),
    "stories": (normal_story, is_story, 1000),
    "tables": (markdown.make_table, is_table, 320),
    "lists": (lambda w: w.pick((markdown.make_list, markdown.tips, markdown.recipe))(w), is_list, 160),
    "code blocks": (programs.program, is_code_block, 260),
    "the right program": (programs.program, is_program, 260),
    "echoes": (echoes.echo, exact, 80),
    "haiku": (poems.haiku, is_haiku, 60),
    "what it is": (chat.identity, is_honest, 80),
    "out of range": (chat.unknown, is_honest, 80),
}


def cases(kind: str, count: int, seed: int) -> list[Case]:
    """Held-out requests of one kind: their wording is on the side of the split that training never writes."""
    make, _, limit = KINDS[kind]
    w = Writer(seed, held_out=True)
    made: list[Case] = []
    while len(made) < count:
        try:
            expected = make(w)
        except Redraw:
            continue
        made.append(Case(kind, ({"role": "user", "content": expected.prompt},), expected, limit))
    return made


def memory_cases(count: int, seed: int) -> list[tuple[tuple[Message, ...], str]]:
    """Conversations that end with a question about something said earlier, and the answer's last word."""
    w = Writer(seed, held_out=True)
    made: list[tuple[tuple[Message, ...], str]] = []
    while len(made) < count:
        try:
            talk = conversations.remembering(w)
        except Redraw:
            continue
        if "told me" not in talk[-1]["content"]:
            made.append((tuple(talk[:-1]), talk[-1]["content"].rstrip(".").split()[-1]))
    return made


class Speaker:
    """An exported model that answers many conversations at once, greedily."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    @torch.inference_mode()
    def answer(self, talks: Sequence[Sequence[Message]], limit: int) -> list[Reply]:
        texts = [
            self.tokenizer.apply_chat_template(list(talk), tokenize=False, add_generation_prompt=True) for talk in talks
        ]
        replies: list[Reply] = []
        for at in range(0, len(texts), BATCH):
            inputs = self.tokenizer(texts[at : at + BATCH], return_tensors="pt", padding=True, add_special_tokens=False)
            inputs.pop("token_type_ids", None)
            out = self.model.generate(**inputs, max_new_tokens=limit, do_sample=False, temperature=None, top_p=None)
            replies += [self.reply(row[inputs["input_ids"].shape[1] :].tolist()) for row in out]
        return replies

    def reply(self, ids: list[int]) -> Reply:
        end = self.tokenizer.eos_token_id
        ended = end in ids
        kept = ids[: ids.index(end)] if ended else ids
        return Reply(self.tokenizer.decode(kept), len(kept), ended)


def judge(speaker: Speaker, kind: str, count: int, seed: int = 11) -> tuple[int, list[tuple[Case, Reply, bool]]]:
    """How many of count held-out requests are answered well, and all of them with their replies."""
    asked = cases(kind, count, seed)
    replies = speaker.answer([case.messages for case in asked], asked[0].limit)
    check = KINDS[kind][1]
    judged = [
        (case, reply, reply.ended and check(reply, case.expected)) for case, reply in zip(asked, replies, strict=True)
    ]
    return sum(good for _, _, good in judged), judged


def judge_memory(speaker: Speaker, count: int, seed: int = 11) -> int:
    asked = memory_cases(count, seed)
    replies = speaker.answer([talk for talk, _ in asked], 40)
    return sum(word in reply.text for (_, word), reply in zip(asked, replies, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("models/demo"))
    parser.add_argument("--each", type=int, default=32, help="requests per kind")
    parser.add_argument("--show", type=int, default=2, help="replies to print per kind")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    args = parser.parse_args()
    speaker = Speaker(args.folder)
    for kind in args.kinds:
        good, judged = judge(speaker, kind, args.each, args.seed)
        print(f"=== {kind}: {good} of {args.each}")
        failed = [entry for entry in judged if not entry[2]]
        for case, reply, passed in (failed + [entry for entry in judged if entry[2]])[: args.show]:
            print(f"  [{'good' if passed else 'bad'}] {case.messages[-1]['content']}\n{reply.text}\n")
    print(f"=== memory: {judge_memory(speaker, args.each, args.seed)} of {args.each}")


if __name__ == "__main__":
    main()
