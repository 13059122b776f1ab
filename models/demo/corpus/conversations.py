"""Conversations: exchanges in a row, with follow-ups, things to remember and instructions to obey.

Owns what links one turn to another. A conversation is a list of messages in the usual form, {"role": ..., "content": ...}.
"""

from collections.abc import Callable

from models.demo.corpus import arithmetic, chat, echoes, engine_talk, facts, markdown, poems, programs, stories
from models.demo.corpus.writer import Exchange, Redraw, Writer, an, bullets, capital

Message = dict[str, str]
Maker = Callable[[Writer], Exchange]
KINDS = {
    "chat": (chat.MAKERS, 22),
    "engine": (engine_talk.MAKERS, 18),
    "stories": (stories.MAKERS, 9),
    "facts": (facts.MAKERS, 30),
    "numbers": (arithmetic.MAKERS, 60),
    "code": (programs.MAKERS, 9),
    "markdown": (markdown.MAKERS, 7),
    "poems": (poems.MAKERS, 4),
    "echoes": (echoes.MAKERS, 14),
}
NEUTRAL = (
    "You are a helpful assistant.", "You are a helpful, honest assistant.", "You are a friendly demonstration model.",
    "You are the assistant of the Carousel server.", "Be helpful and kind.",
    "You are a helpful assistant. Answer the questions of the user.", "Answer the user's questions.",
    "You are an assistant.", "Today is a good day. Help the user.",
    "You are a small model that is honest about its limits.",
)  # fmt: skip
BRIEF = (
    "Answer briefly.", "Keep your answers short.", "Be brief.", "Answer in one sentence.",
    "You are a helpful assistant. Answer briefly.", "Give short answers only.", "Use as few words as possible.",
    "You answer in one short sentence.",
)  # fmt: skip
POINTS = (
    "Answer in bullet points.", "Always use bullet points.", "Write every answer as a list.",
    "You answer with bullet points only.", "You are a helpful assistant who answers in bullet points.",
    "Use a bulleted list for each answer.",
)  # fmt: skip
PIRATE = (
    "You are a pirate.", "Talk like a pirate.", "You are a friendly pirate captain.", "Answer like a pirate.",
    "Pretend to be a pirate.", "You are an old pirate who helps people.",
)  # fmt: skip
NAMED = (
    "You are {name}, a friendly assistant.", "Your name is {name}.", "You are called {name}. Be helpful.",
    "You are {name}.", "You are {name}, the assistant of a small library.",
)  # fmt: skip
BEGIN = (
    'Begin every answer with "{words}"', 'Start each answer with "{words}"', 'Always begin your answers with "{words}"',
    'Begin with "{words}" and then answer.',
)  # fmt: skip
BEGINNINGS = (
    "Well,", "Of course!", "Dear reader,", "Indeed.", "Let me see.", "Good question!", "My friend,", "Aha!", "Listen:",
    "Hooray!",
)  # fmt: skip
AGAIN = (
    "another one", "Another one please.", "one more", "again", "More!", "Give me another one.",
    "Can I have another one?", "do another", "tell me another one", "And another?", "one more please", "another",
    "Next one, please.",
)  # fmt: skip
SHORTER = (
    "shorter please", "Shorter", "Can you make it shorter?", "Too long.", "too long, make it short", "Please be brief.",
    "In one sentence please.", "Summarise that.", "make that shorter", "The short version please.",
)  # fmt: skip
LONGER = (
    "longer please", "Tell me more.", "more details please", "Can you explain that in more detail?", "Longer", "Go on.",
    "I want to know more about that.", "Say more about it.", "More please", "and in detail?",
)  # fmt: skip
LISTED = (
    "as a list please", "Can you put that in bullet points?", "In bullet points please.", "Make it a list.",
    "Give me that as a list.", "bullet points",
)  # fmt: skip
SIMPLER = (
    "I don't understand", "Can you say that more simply?", "simpler please", "What does that mean?", "I don't get it.",
    "Explain it like I'm five.", "Give me an example.", "Say it in other words.",
)  # fmt: skip
SURE = ("Are you sure?", "Really?", "is that right?", "Is that true?", "Sure?", "Are you certain about that?")
YES = (
    "yes", "Yes please.", "yes please", "Sure", "ok", "Yes, do that.", "Please do!", "Why not?", "okay then", "yeah",
    "yep", "Yes!", "Go ahead.", "that would be nice", "I would like that.", "Yes, I'd like that.",
)  # fmt: skip
WHAT_DID_YOU = (
    "What did you just say?", "Say that again.", "Can you repeat that?", "repeat please", "Repeat your last answer.",
    "I didn't hear you, what did you say?",
)  # fmt: skip
WHAT_DID_I = (
    "What did I just say?", "What did I say?", "what was my last message", "What was my question?",
    "What did I just ask you?", "Repeat my question.", "What did I ask?", "Do you remember what I said?",
)  # fmt: skip
ASK_NAME = (
    "What is my name?", "What's my name?", "Do you know my name?", "Do you remember my name?", "who am i",
    "Tell me my name.", "So what is my name?", "Can you tell me what my name is?", "Say my name.", "what am I called?",
)  # fmt: skip
TELL_NAME = (
    "My name is {name}.", "I am {name}.", "I'm {name}.", "Hi, I am {name}.", "hello, my name is {name}",
    "You can call me {name}.", "Call me {name}.", "Hello! I'm {name}, nice to meet you.", "my name's {name}",
    "hey my name is {name}.", "Please call me {name}.", "I am called {name}.",
)  # fmt: skip
YOUR_NAME = (
    "What is your name?", "Who are you?", "What's your name?", "What are you called?", "Tell me your name.",
    "Do you have a name?", "Introduce yourself.",
)  # fmt: skip
FAVOURITES = {
    "colour": ("blue", "green", "red", "yellow", "purple", "orange", "pink"),
    "animal": tuple(stories.ANIMALS[:16]),
    "food": ("pizza", "soup", "pancakes", "rice", "cake", "pasta", "bread"),
    "city": ("Paris", "Rome", "Oslo", "Lima", "Tokyo", "Berlin", "Cairo"),
    "number": tuple(map(str, range(1, 40))),
}


OFFERS: dict[str, Maker] = {
    "tell a story about any animal you like": stories.animal_story,
    "explain continuous batching": lambda w: engine_talk.on(w, "continuous batching"),
    "explain what a token is": lambda w: engine_talk.on(w, "a token"),
    "count from one number to another": arithmetic.counting,
    "add two one-digit numbers": arithmetic.addition,
    "write a haiku": poems.haiku,
    "show a short program in Python": programs.python_program,
    "make a table in Markdown": markdown.make_table,
    "name the capital of a country": facts.capital_city,
    "find the opposite of a word": facts.opposite,
    "say hello in French, Spanish or German": facts.hello,
    "write a shopping list": markdown.shopping_list,
    "tell you a story": stories.animal_story,
}


def exchange(w: Writer, kind: str = "") -> Exchange:
    """One exchange of the given kind, or of a kind drawn by weight."""
    if not kind:
        kind = w.choices(list(KINDS), weights=[weight for _, weight in KINDS.values()])[0]
    makers = KINDS[kind][0]
    while True:
        try:
            make: Maker = w.choices([maker for maker, _ in makers], weights=[weight for _, weight in makers])[0]
            return make(w)
        except Redraw:
            continue


def follow_ups(w: Writer, done: Exchange) -> list[Message]:
    """Up to one turn that refers to the exchange just finished."""
    options: list[tuple[tuple[str, ...], str]] = []
    if done.again:
        options += [(AGAIN, done.again(w))] * 3
    if done.short and len(done.short) < len(done.answer) * 0.8:
        options.append((SHORTER, done.short))
    if done.long:
        options += [(LONGER, done.long), (SIMPLER, done.again(w) if done.again else done.short)]
    if len(done.points) > 2:
        options.append((LISTED, bullets(done.points)))
    if done.kind in ("facts", "sums") and "\n" not in done.answer:
        options.append((SURE, w.pick(("Yes, I am quite sure: ", "I think so: ", "Yes. ")) + done.answer))
    if len(done.prompt) < 80:
        options.append(
            (
                WHAT_DID_I,
                w.pick(('You said: "{}"', 'Your last message was: "{}"', 'You wrote: "{}"')).format(done.prompt),
            )
        )
    if len(done.answer) < 200:
        options.append((WHAT_DID_YOU, done.answer))
    offered = chat.offer(done.answer)
    if offered:
        options += [(YES, exchange_of(w, offered))] * 6
    if not options:
        return []
    asks, answer = w.pick(options)
    return turn(w.ask(asks), answer)


def exchange_of(w: Writer, offered: str) -> str:
    """What the model does when somebody says yes to its offer."""
    make = OFFERS[offered]
    while True:
        try:
            return make(w).answer
        except Redraw:
            continue


def turn(prompt: str, answer: str) -> list[Message]:
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]


def plain(w: Writer, kind: str = "") -> list[Message]:
    """One to five exchanges, some of them followed up."""
    messages: list[Message] = []
    for _ in range(w.pick((1, 1, 1, 2, 2, 3, 4))):
        done = exchange(w, kind)
        messages += turn(done.prompt, done.answer)
        if w.chance(0.6 if chat.offer(done.answer) else 0.35):
            messages += follow_ups(w, done)
        if w.chance(0.2):
            thanks, replies = chat.SHORT_TALK[0]
            messages += turn(w.ask(thanks), w.pick(replies))
    return messages


REMEMBERING_ASKS = (
    "I have {a} named {name}.", "I have {a} called {name}.", "My {pet} is called {name}.", "My {pet} is named {name}.",
)  # fmt: skip
REMEMBERING_ASKS_2 = (
    "What is my {pet} called?", "What is the name of my {pet}?", "What's my {pet}'s name?",
    "Do you remember the name of my {pet}?",
)  # fmt: skip
REMEMBERING_ASKS_3 = (
    "My favourite {what} is {value}.", "My favorite {what} is {value}.", "I like the {what} {value} best.",
    "{value} is my favourite {what}.",
)  # fmt: skip
REMEMBERING_ASKS_4 = (
    "What is my favourite {what}?", "What's my favorite {what}?", "Do you remember my favourite {what}?",
    "Which {what} do I like best?",
)  # fmt: skip


def remembering(w: Writer) -> list[Message]:
    """The person says something about themselves and asks for it later, perhaps after other talk."""
    talk: list[Message] = []
    for _ in range(w.pick((0, 0, 1, 2))):
        other = exchange(w, w.pick(("chat", "facts", "numbers", "engine", "poems")))
        talk += turn(other.prompt, other.answer)
    if w.chance(0.12):
        return talk + turn(
            w.ask(ASK_NAME),
            w.pick(("You have not told me your name yet.", "I do not know it. You have not told me your name.")),
        )
    if w.chance(0.6):
        name = w.pick(stories.SHE_NAMES + stories.HE_NAMES) if w.chance(0.4) else capital(stories.made_up(w))
        hello = w.pick(
            (
                "Nice to meet you, {}!",
                "Hello, {}! What can I do for you?",
                "Hi {}, it is nice to meet you.",
                "Welcome, {}!",
            )
        ).format(name)
        told, asked, answer = (
            w.ask(TELL_NAME, name=name),
            w.ask(ASK_NAME),
            w.pick((f"Your name is {name}.", f"You are {name}.")),
        )
        return turn(told, hello) + talk + turn(asked, answer)
    if w.chance(0.5):
        what = w.pick(list(FAVOURITES))
        value = w.pick(FAVOURITES[what])
        told = w.ask(REMEMBERING_ASKS_3, what=what, value=value)
        asked = w.ask(REMEMBERING_ASKS_4, what=what)
        return (
            turn(told, w.pick((f"I will remember that: {value}.", f"{capital(value)} is a good choice.")))
            + talk
            + turn(asked, f"Your favourite {what} is {value}.")
        )
    pet, name = (
        w.pick(stories.ANIMALS[:14]),
        w.pick(stories.SHE_NAMES + stories.HE_NAMES) if w.chance(0.5) else capital(stories.made_up(w)),
    )
    told = w.ask(REMEMBERING_ASKS, a=an(pet), pet=pet, name=name)
    asked = w.ask(REMEMBERING_ASKS_2, pet=pet)
    return (
        turn(told, w.pick((f"{name} is a lovely name for {an(pet)}.", f"How nice! Say hello to {name} from me.")))
        + talk
        + turn(asked, f"Your {pet} is called {name}.")
    )


def instructed(w: Writer) -> list[Message]:
    """A conversation under a system prompt that changes how answers look."""
    style = w.pick((BRIEF, POINTS, PIRATE, NAMED, BEGIN))
    name = w.pick(stories.SHE_NAMES + stories.HE_NAMES) if w.chance(0.5) else capital(stories.made_up(w))
    words = w.pick(BEGINNINGS)
    messages = [{"role": "system", "content": w.pick(style).format(name=name, words=words)}]
    if style is NAMED:
        messages += turn(
            w.ask(YOUR_NAME),
            w.pick(
                (
                    f"I am {name}. I am a small demonstration model.",
                    f"My name is {name}, and I am a small demonstration model.",
                )
            ),
        )
    for _ in range(w.randint(1, 3)):
        done = exchange(w, w.pick(("chat", "engine", "facts", "facts", "numbers", "poems", "markdown", "engine")))
        answer = done.answer
        if style is BRIEF:
            answer = done.short or answer
        elif style is POINTS:
            answer = bullets(done.points or (answer,)) if "\n" not in answer or done.points else answer
        elif style is BEGIN:
            answer = f"{words} {answer}" if "\n" not in answer else f"{words}\n\n{answer}"
        elif style is PIRATE:
            answer = w.pick(("Arr! ", "Ahoy, matey! ", "Aye aye! ")) + answer
            answer += w.pick((" Arr!", " Yo ho ho!", " Aye, matey.", "")) if "\n" not in answer else ""
        messages += turn(done.prompt, answer)
    return messages


def conversation(w: Writer, echo_share: float = 0.0) -> list[Message]:
    """One document of the corpus; echo_share of the documents only repeat what is said."""
    while True:
        try:
            if echo_share and w.chance(echo_share):
                return plain(w, "echoes")
            draw = w.random()
            if draw < 0.09:
                return remembering(w)
            if draw < 0.21:
                return instructed(w)
            messages = plain(w)
        except Redraw:
            continue
        if w.chance(0.2):
            messages.insert(0, {"role": "system", "content": w.pick(NEUTRAL)})
        return messages
