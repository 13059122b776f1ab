"""Use a model in a Python program, without a server.

    python examples/python_api.py            # the default model, or MODEL as an argument: a folder, a hub name, demo

Needs this project to be importable: `pip install .`, or its root on PYTHONPATH.
"""

from __future__ import annotations

import asyncio
import sys

from app.llm import LLM


def main() -> None:
    """Complete prompts together, stream one, answer a conversation, and await two in an asyncio program."""
    with LLM(sys.argv[1] if len(sys.argv) > 1 else None, max_num_seqs=8) as llm:
        prompts = ["Once upon a time", "The fox said"]
        for prompt, text in zip(prompts, llm.generate(prompts, {"max_tokens": 30, "temperature": 0}), strict=True):
            print(f"> {prompt}\n{text}\n")
        for piece in llm.stream("Hello!", {"max_tokens": 30, "seed": 1}):
            print(piece, end="", flush=True)
        print()
        [answer] = llm.chat([{"role": "user", "content": "Tell me a story about a fox."}], {"max_tokens": 30})
        print(answer)
        asyncio.run(concurrently(llm))


async def concurrently(llm: LLM) -> None:
    """Await two completions at once."""
    first, second = await asyncio.gather(
        llm.agenerate("What are pages?", {"max_tokens": 20}), llm.agenerate("Hello!", {"max_tokens": 20})
    )
    print(len(first) + len(second), "texts")


if __name__ == "__main__":
    main()
