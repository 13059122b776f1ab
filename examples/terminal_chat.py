"""Chat with a running server in a terminal; Ctrl-C stops an answer, Ctrl-D ends the program.

    python examples/terminal_chat.py --url http://127.0.0.1:8000/v1

Needs the package `openai`.
"""

from __future__ import annotations

import argparse

from openai import OpenAI
from openai.types.chat import ChatCompletionMessageParam


def main() -> None:
    """Read a line, stream the answer, repeat."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--api-key", default="none")
    options = parser.parse_args()
    client = OpenAI(base_url=options.url, api_key=options.api_key)
    model = client.models.list().data[0].id
    messages: list[ChatCompletionMessageParam] = []
    while True:
        try:
            messages.append({"role": "user", "content": input("\n> ")})
        except (EOFError, KeyboardInterrupt):
            print()
            return
        messages.append({"role": "assistant", "content": stream_answer(client, model, messages)})


def stream_answer(client: OpenAI, model: str, messages: list[ChatCompletionMessageParam]) -> str:
    """Print an answer while it is generated, and return its text."""
    parts: list[str] = []
    # `priority`: a person is waiting, so this request may preempt lower tiers.
    with client.chat.completions.create(model=model, messages=messages, stream=True, service_tier="priority") as stream:
        try:
            for chunk in stream:
                text = chunk.choices[0].delta.content or "" if chunk.choices else ""
                parts.append(text)
                print(text, end="", flush=True)
        except KeyboardInterrupt:
            print(" [stopped]", end="")  # closing the stream cancels the request on the server
    print()
    return "".join(parts)


if __name__ == "__main__":
    main()
