"""Simple facts: capitals, opposites, animals, the calendar, rhymes, words in other languages.

Owns the questions; fact_tables.py owns what is true. Every table is closed: a question about something outside it is answered
with an honest "I do not know", so that the model learns where its knowledge ends.
"""

from models.demo.corpus.fact_tables import (
    ANIMALS,
    CAPITALS,
    COLOURS,
    COUNT_WORDS,
    DAYS,
    FAR_COUNTRIES,
    GENERAL,
    LANGUAGES,
    MONTHS,
    OPPOSITES,
    PLURALS,
    RHYMES,
)
from models.demo.corpus.writer import Exchange, Writer, an, bullets, capital, listing

CAPITAL_CITY_ASKS = (
    "Which country has the capital {city}?", "{city} is the capital of which country?",
    "What country is {city} the capital of?",
)  # fmt: skip


def capital_city(w: Writer) -> Exchange:
    if w.chance(0.1):
        country = w.pick(FAR_COUNTRIES)
        prompt = w.ask(CAPITAL_ASKS, country=country)
        return Exchange(
            "facts", prompt, f"I do not know the capital of {country}. I only learned about forty capitals."
        )
    country = w.pick(list(CAPITALS))
    city = CAPITALS[country]
    if w.chance(0.15):
        asked = w.ask(CAPITAL_CITY_ASKS, city=city)
        return Exchange("facts", asked, f"{city} is the capital of {country}.", short=capital(country) + ".")
    written = country.lower() if w.chance(0.25) else country
    prompt = w.ask(CAPITAL_ASKS, country=written)
    return Exchange("facts", prompt, f"The capital of {country} is {city}.", short=f"{city}.", again=other_capital)


CAPITAL_ASKS = (
    "What is the capital of {country}?", "What's the capital of {country}?", "Capital of {country}?",
    "Tell me the capital of {country}.", "Which city is the capital of {country}?", "Name the capital of {country}.",
    "Do you know the capital of {country}?", "What is the capital city of {country}?",
)  # fmt: skip


def other_capital(w: Writer) -> str:
    country = w.pick(list(CAPITALS))
    return f"The capital of {country} is {CAPITALS[country]}."


OPPOSITE_ASKS = (
    "What is the opposite of {word}?", "What's the opposite of {word}?", "Opposite of {word}?",
    "Tell me the opposite of {word}.", "Give me the opposite of {word}.", "Which word is the opposite of {word}?",
    "What is the opposite of the word {word}?",
)  # fmt: skip


def opposite(w: Writer) -> Exchange:
    pair = w.pick(OPPOSITES)
    word, other = pair if pair[0] in ("heavy", "young") or w.chance(0.5) else pair[::-1]
    if word in ("light", "old", "short"):
        word, other = {"light": ("dark", "light"), "old": ("new", "old"), "short": ("tall", "short")}[word]
    prompt = w.ask(OPPOSITE_ASKS, word=word)
    return Exchange("facts", prompt, f"The opposite of {word} is {other}.", short=f"{capital(other)}.")


COLOUR_ASKS = (
    "What colour is {thing}?", "What color is {thing}?", "Which colour is {thing}?", "What is the colour of {thing}?",
    "Tell me the color of {thing}.", "Do you know what colour {thing} is?",
)  # fmt: skip


def colour(w: Writer) -> Exchange:
    thing = w.pick(list(COLOURS))
    answer = f"{capital(thing)} is {COLOURS[thing]}."
    prompt = w.ask(COLOUR_ASKS, thing=thing)
    return Exchange("facts", prompt, answer, short=f"{capital(COLOURS[thing])}.")


ANIMAL_ASKS = (
    "Tell me about the {name}.", "What do you know about {a}?", "Describe {a}.", "Tell me something about {a}.",
)  # fmt: skip


def animal(w: Writer) -> Exchange:
    name = w.pick(list(ANIMALS))
    sound, home, young, legs, food = ANIMALS[name]
    a = an(name)
    asks, answer, short = w.pick(
        (
            (
                ("What sound does {a} make?", "What noise does {a} make?", "How does {a} sound?", "What does {a} say?"),
                f"{capital(a)} {sound}.",
                f"It {sound}.",
            ),
            (
                ("Where does {a} live?", "What is the home of {a}?", "Where do you find {a}?"),
                f"{capital(a)} lives in {home}.",
                f"In {home}.",
            ),
            (
                (
                    "What is a baby {name} called?",
                    "What do you call a young {name}?",
                    "What is the name for a baby {name}?",
                ),
                f"A young {name} is called {an(young)}.",
                f"{capital(an(young))}.",
            ),
            (
                ("How many legs does {a} have?", "How many legs has {a}?", "Number of legs of {a}?"),
                f"{capital(a)} has {legs} legs.",
                f"{legs}.",
            ),
            (
                ("What does {a} eat?", "What is the food of {a}?", "What do you feed {a}?"),
                f"{capital(a)} eats {food}.",
                f"{capital(food)}.",
            ),
        )
    )
    if w.chance(0.2):
        prompt = w.ask(ANIMAL_ASKS, name=name, a=a)
        points = (
            f"It has {legs} legs.",
            f"It eats {food}.",
            f"It lives in {home}.",
            f"Its young is called {an(young)}.",
        )
        text = f"{capital(a)} has {legs} legs and lives in {home}. It eats {food}, and it {sound}. Its young is called {an(young)}."
        return Exchange("facts", prompt, text, short=f"{capital(a)} lives in {home} and eats {food}.", points=points)
    return Exchange("facts", w.ask(asks, name=name, a=a), answer, short=short)


def calendar(w: Writer) -> Exchange:
    if w.chance(0.5):
        names, month = list(MONTHS), w.pick(list(MONTHS))
        at = names.index(month)
        asks, answer = w.pick(
            (
                (
                    ("Which month comes after {x}?", "What month is after {x}?", "What is the month after {x}?"),
                    f"After {month} comes {names[(at + 1) % 12]}.",
                ),
                (
                    ("Which month comes before {x}?", "What month is before {x}?", "What is the month before {x}?"),
                    f"Before {month} comes {names[at - 1]}.",
                ),
                (
                    ("How many days does {x} have?", "How many days are in {x}?", "How long is {x}?"),
                    f"{month} has {MONTHS[month]} days" + (", or 29 in a leap year." if at == 1 else "."),
                ),
            )
        )
        return Exchange("facts", w.ask(asks, x=month if w.chance(0.7) else month.lower()), answer)
    day = w.pick(DAYS)
    at = DAYS.index(day)
    asks, answer = w.pick(
        (
            (
                (
                    "Which day comes after {x}?",
                    "What day is after {x}?",
                    "What is the day after {x}?",
                    "If today is {x}, what is tomorrow?",
                ),
                f"After {day} comes {DAYS[(at + 1) % 7]}.",
            ),
            (
                (
                    "Which day comes before {x}?",
                    "What day is before {x}?",
                    "What is the day before {x}?",
                    "If today is {x}, what was yesterday?",
                ),
                f"Before {day} comes {DAYS[at - 1]}.",
            ),
        )
    )
    return Exchange("facts", w.ask(asks, x=day if w.chance(0.7) else day.lower()), answer)


RHYME_ASKS = (
    "What rhymes with {word}?", "Give me a rhyme for {word}.", "Tell me words that rhyme with {word}.",
    "Which words rhyme with {word}?", "Find a rhyme for {word}.", "I need a word that rhymes with {word}.",
    "Give me words that rhyme with {word}.",
)  # fmt: skip


def rhyme(w: Writer) -> Exchange:
    group = w.pick(RHYMES)
    word = w.pick(group)
    others = [other for other in group if other != word]
    prompt = w.ask(RHYME_ASKS, word=word)
    return Exchange(
        "facts",
        prompt,
        f"{capital(listing(others))} rhyme with {word}.",
        short=f"{capital(others[0])}.",
        points=tuple(others),
    )


TRANSLATION_ASKS = (
    "What is {word} in {language}?", "How do you say {word} in {language}?", "Translate {word} into {language}.",
    "Translate {word} to {language}.", "What's {word} in {language}?", "What is the {language} word for {word}?",
    "How do I say {word} in {language}?",
)  # fmt: skip


def translation(w: Writer) -> Exchange:
    language = w.pick(list(LANGUAGES))
    words = LANGUAGES[language]
    word = w.pick(list(words))
    shown = language.lower() if w.chance(0.3) else language
    prompt = w.ask(TRANSLATION_ASKS, word=word if w.chance(0.7) else f'"{word}"', language=shown)
    return Exchange("facts", prompt, f'In {language}, "{word}" is "{words[word]}".', short=f"{capital(words[word])}.")


def hello(w: Writer) -> Exchange:
    language = w.pick(list(LANGUAGES))
    return Exchange("facts", f"hello in {language}", f'In {language}, "hello" is "{LANGUAGES[language]["hello"]}".')


PLURAL_ASKS = (
    "What is the plural of {word}?", "What's the plural of {word}?", "Plural of {word}?",
    "Tell me the plural of {word}.", "One {word}, two what?", "How do you write more than one {word}?",
)  # fmt: skip


def plural(w: Writer) -> Exchange:
    word = w.pick(list(PLURALS))
    prompt = w.ask(PLURAL_ASKS, word=word)
    return Exchange("facts", prompt, f"The plural of {word} is {PLURALS[word]}.", short=f"{capital(PLURALS[word])}.")


def general(w: Writer) -> Exchange:
    asks, answer = w.pick(GENERAL)
    return Exchange("facts", w.ask(asks), answer)


FUN_FACT_ASKS = (
    "Tell me a fact.", "Tell me something interesting.", "Give me a fun fact.", "Tell me something.",
    "Do you know a fun fact?", "Tell me something I don't know.", "Teach me something.", "Say something interesting.",
)  # fmt: skip


def fun_fact(w: Writer) -> Exchange:
    prompt = w.ask(FUN_FACT_ASKS)
    return Exchange("facts", prompt, "Here is a fact: " + fact(w), again=lambda w: "Here is another fact: " + fact(w))


def fact(w: Writer) -> str:
    if w.chance(0.5):
        return w.pick(GENERAL)[1]
    name = w.pick(list(ANIMALS))
    return w.pick(
        (
            f"a young {name} is called {an(ANIMALS[name][2])}.",
            f"{an(name)} lives in {ANIMALS[name][1]} and eats {ANIMALS[name][4]}.",
            other_capital(w),
        )
    )


COLOURS_LIST_ASKS = (
    "Name {count} {what}.", "Give me {count} {what}.", "List {count} {what}.", "Tell me {count} {what}.",
    "Can you name {count} {what}?",
)  # fmt: skip


def colours_list(w: Writer) -> Exchange:
    what, items = w.pick(
        (
            ("colours", ("red", "blue", "green", "yellow", "orange", "purple", "pink", "brown", "black", "white")),
            ("animals", tuple(ANIMALS)),
            ("countries", tuple(c for c in CAPITALS if not c.startswith("the"))),
            ("fruits", ("apple", "pear", "banana", "cherry", "lemon", "orange", "plum", "grape", "melon", "peach")),
        )
    )
    count = w.randint(2, 6)
    chosen = w.run_of(items, count)
    prompt = w.ask(COLOURS_LIST_ASKS, count=w.pick((count, COUNT_WORDS[count])), what=what)
    answer = f"Here are {COUNT_WORDS[count]} {what}:\n\n{bullets(chosen)}"
    return Exchange("lists", prompt, answer, short=f"{capital(listing(chosen))}.", points=tuple(chosen))


MAKERS = (
    (capital_city, 5),
    (opposite, 3),
    (colour, 2),
    (animal, 4),
    (calendar, 2),
    (rhyme, 2),
    (translation, 4),
    (plural, 1),
    (general, 3),
    (fun_fact, 1),
    (colours_list, 2),
)
