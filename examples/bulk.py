"""Complete many prompts in the background, without delaying the people who use the same server.

Prompts are read from a file, one a line; results are written as JSON lines in the order in which they finish. Requests
have the tier `flex`: the server preempts them for people and resumes them later with the same text. When its queue is
full (429 or 503) the client retries after the time that the server states.

    python examples/bulk.py prompts.txt results.jsonl --url http://127.0.0.1:8000/v1

Needs the package `openai`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path
from typing import TextIO

from openai import AsyncOpenAI


async def complete(client: AsyncOpenAI, model: str, number: int, prompt: str, out: TextIO) -> None:
    """Answer one prompt and write its result."""
    answer = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": prompt}],
        max_completion_tokens=256,
        service_tier="flex",
        seed=number,  # the same job gives the same answers again
    )
    choice = answer.choices[0]
    row = {"number": number, "prompt": prompt, "answer": choice.message.content, "finish_reason": choice.finish_reason}
    out.write(json.dumps(row, ensure_ascii=False) + "\n")
    out.flush()


async def run(options: argparse.Namespace) -> None:
    """Keep `--concurrency` requests in flight until every prompt is answered."""
    prompts = [line for line in options.prompts.read_text(encoding="utf-8").splitlines() if line.strip()]
    # The client waits as long as `Retry-After` says.
    async with AsyncOpenAI(base_url=options.url, api_key=options.api_key, max_retries=20, timeout=3600) as client:
        model = (await client.models.list()).data[0].id
        slots = asyncio.Semaphore(options.concurrency)

        with options.results.open("w", encoding="utf-8") as out:

            async def one(number: int, prompt: str) -> None:
                async with slots:
                    await complete(client, model, number, prompt, out)

            await asyncio.gather(*(one(number, prompt) for number, prompt in enumerate(prompts)))
    print(f"{len(prompts)} prompts completed")


def main() -> None:
    """Parse options and run the job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--api-key", default="none")
    parser.add_argument("--concurrency", type=int, default=32)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
