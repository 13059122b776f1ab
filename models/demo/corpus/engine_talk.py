"""Explanations of how a server works, from one sentence to a page. Owns how sentences about a topic are joined; engine_topics.py
owns the sentences."""

from models.demo.corpus.engine_topics import COMPARISONS, TOPICS, Topic
from models.demo.corpus.writer import Exchange, Writer, bullets, capital, numbered

BY_NAME = {name: topic for topic in TOPICS for name in topic.names}
ASKS = (
    "What is {x}?", "What's {x}?", "Explain {x}.", "Explain {x} to me.", "How does {x} work?", "Tell me about {x}.",
    "what is {x}", "{x}?", "What does {x} mean?", "Can you explain {x}?", "I don't understand {x}.", "Describe {x}.",
    "What do you know about {x}?", "Why do we need {x}?", "Define {x}.", "Help me understand {x}.",
    "I want to learn about {x}.", "What is meant by {x}?", "Please explain {x}.", "hey what is {x}", "So what is {x}?",
    "Tell me what {x} is.", "Do you know what {x} is?", "explain {x} pls", "How would you explain {x}?",
)  # fmt: skip
SHORT_ASKS = (
    "Explain {x} in one sentence.", "Explain {x} briefly.", "What is {x} in short?", "Explain {x} in a few words.",
    "Define {x} in one sentence.", "Give me a short explanation of {x}.", "What is {x}? Keep it short.",
)  # fmt: skip
LONG_ASKS = (
    "Explain {x} in detail.", "Tell me everything about {x}.", "Give me a long explanation of {x}.",
    "Write an essay about {x}.", "Explain {x} at length.", "Write a long text about {x}.", "Explain {x} step by step.",
    "Describe {x} in detail.",
)  # fmt: skip
BULLET_ASKS = (
    "Explain {x} in bullet points.", "Give me a list of facts about {x}.", "Summarise {x} as a list.",
    "What are the key points of {x}?", "List the main points of {x}.", "Explain {x} with bullet points.",
)  # fmt: skip
SIMPLE_ASKS = (
    "Explain {x} like I am five.", "Explain {x} in simple words.", "Explain {x} to a child.", "What is {x} like?",
    "Give me an analogy for {x}.", "Can you explain {x} with a picture?", "Explain {x} simply.",
)  # fmt: skip
COMPARE_ASKS = (
    "What is the difference between {x} and {y}?", "Compare {x} and {y}.", "{x} vs {y}",
    "What's the difference between {x} and {y}?", "How do {x} and {y} differ?",
    "Explain the difference between {x} and {y}.", "{x} or {y}?",
)  # fmt: skip


def definition(w: Writer, topic: Topic) -> str:
    return w.pick(topic.what)


def steps(w: Writer, topic: Topic) -> list[str]:
    return [w.pick(step) for step in topic.how]


def medium(w: Writer, topic: Topic) -> str:
    tail = w.pick((w.pick(topic.why), w.pick(topic.why), w.pick(topic.like)))
    return " ".join((definition(w, topic), *steps(w, topic), tail))


def simple(w: Writer, topic: Topic) -> str:
    return f"{w.pick(topic.like)} {definition(w, topic)} {w.pick(topic.why)}"


def points(w: Writer, topic: Topic) -> tuple[str, ...]:
    return (definition(w, topic), *steps(w, topic), w.pick(topic.why))


def long(w: Writer, topic: Topic) -> str:
    """A page with headings: definition, steps, use, picture, and a sentence that sums it up."""
    name = capital(topic.names[0])
    walk = numbered(steps(w, topic)) if w.chance(0.6) else " ".join(steps(w, topic))
    first, second = w.sample(topic.what, 2) if len(topic.what) > 1 else (topic.what[0], "")
    parts = [
        f"## {name}",
        first,
        "### How it works",
        walk,
        "### Why it matters",
        " ".join(w.sample(topic.why, len(topic.why))),
        "### A picture",
        " ".join(topic.like),
        f"**In short:** {second or first}",
    ]
    return "\n\n".join(parts)


def exchange(w: Writer, topic: Topic, prompt: str, answer: str) -> Exchange:
    return Exchange(
        "engine",
        prompt,
        answer,
        short=definition(w, topic),
        long=long(w, topic),
        points=points(w, topic),
        again=lambda w: simple(w, topic),
    )


def explanation(w: Writer) -> Exchange:
    topic = w.pick(TOPICS)
    name = w.pick(topic.names)
    style = w.random()
    if style < 0.5:
        return exchange(w, topic, w.ask(ASKS, x=name), medium(w, topic))
    if style < 0.62:
        return exchange(w, topic, w.ask(SHORT_ASKS, x=name), definition(w, topic))
    if style < 0.78:
        return exchange(w, topic, w.ask(LONG_ASKS, x=name), long(w, topic))
    if style < 0.88:
        return exchange(w, topic, w.ask(BULLET_ASKS, x=name), bullets(points(w, topic)))
    return exchange(w, topic, w.ask(SIMPLE_ASKS, x=name), simple(w, topic))


def on(w: Writer, name: str) -> Exchange:
    """An explanation of the topic with this name."""
    return exchange(w, BY_NAME[name], name, medium(w, BY_NAME[name]))


def comparison(w: Writer) -> Exchange:
    pair = w.pick(COMPARISONS)
    x, y = pair if w.chance(0.5) else pair[::-1]
    one, two = BY_NAME[x], BY_NAME[y]
    prompt = w.ask(COMPARE_ASKS, x=x, y=y)
    if w.chance(0.3):
        answer = f"| Term | What it means |\n| --- | --- |\n| {capital(x)} | {definition(w, one)} |\n| {capital(y)} | {definition(w, two)} |"
    else:
        answer = f"{definition(w, one)} {w.pick(one.why)}\n\n{definition(w, two)} {w.pick(two.why)}"
    return Exchange(
        "engine",
        prompt,
        answer,
        short=f"{definition(w, one)} {definition(w, two)}",
        points=(f"**{capital(x)}:** {definition(w, one)}", f"**{capital(y)}:** {definition(w, two)}"),
    )


WHICH_TOPICS_ASKS = (
    "What can you explain?", "Which topics can you explain?", "What do you know about servers?",
    "What do you know about LLM serving?", "Which technical topics do you know?", "What can I learn from you?",
)  # fmt: skip


def which_topics(w: Writer) -> Exchange:
    prompt = w.ask(WHICH_TOPICS_ASKS)
    names = [topic.names[0] for topic in w.run_of(TOPICS, 6)]
    return Exchange(
        "engine",
        prompt,
        "I can explain how a server for language models works, for example:\n\n" + bullets(names),
        short="I can explain how a server for language models works.",
    )


MAKERS = ((explanation, 10), (comparison, 2), (which_topics, 1))
