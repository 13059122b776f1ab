"""Haiku and rhymed poems. Owns the lines; a haiku's lines have five, seven and five syllables, and a couplet's lines rhyme."""

from models.demo.corpus.stories import SHE_NAMES
from models.demo.corpus.writer import Exchange, Writer

# theme: (five syllables, seven syllables, five syllables)
HAIKU = {
    "rain": (
        ("Rain upon the roof", "Soft rain in the night", "Grey clouds come and go"),
        ("a thousand small feet dancing", "the garden drinks and listens", "every leaf becomes a drum"),
        ("then the sun returns", "the street is a stream", "I put down my book"),
    ),
    "the sea": (
        ("Waves come, and waves go", "Blue without an end", "Salt upon the wind"),
        ("a white sail on the water", "the old boat dreams of islands", "a gull hangs over the pier"),
        ("and the tide turns back", "the sand keeps no names", "evening takes the shore"),
    ),
    "winter": (
        ("Snow on every branch", "The white fields are still", "Cold breath in the air"),
        ("one small bird hops on the path", "footprints lead to the dark wood", "the pond has become a glass"),
        ("smoke climbs to the stars", "the fire talks low", "spring is far away"),
    ),
    "spring": (
        ("The first green is here", "Buds upon the branch", "A warm wind wakes up"),
        ("the bees have found the garden", "children run without their coats", "the river is loud again"),
        ("the old cat stretches", "winter packs its bags", "petals on the path"),
    ),
    "autumn": (
        ("Red leaves on the path", "The swallows have left", "Fog lies on the fields"),
        ("the last apple on the tree", "an old man sweeps the courtyard", "the wind counts what is falling"),
        ("soon it will be dark", "time to light the lamp", "the year takes a bow"),
    ),
    "summer": (
        ("Heat above the road", "Cherries on the tree", "The long afternoon"),
        ("the crickets never grow tired", "a hammock between two trees", "somebody laughs in the lake"),
        ("shade is a good friend", "the night smells of hay", "ice melts in the glass"),
    ),
    "the moon": (
        ("Moon above the hill", "A thin silver boat", "The night has one eye"),
        ("it sails on without a sound", "the dog sings to it softly", "it lies in every puddle"),
        ("nobody steers it", "I wave, and it stays", "sleep comes on light feet"),
    ),
    "a cat": (
        ("The cat on the wall", "Two eyes in the dark", "Warm stone, sleeping cat"),
        ("pretends not to see the bird", "a tail that writes in the air", "she owns the house and the sun"),
        ("nothing is her fault", "dinner is at six", "she forgives us all"),
    ),
    "computers": (
        ("The small light blinks on", "One thread at a time", "Numbers flow like rain"),
        ("a batch turns and turns again", "the fan hums its evening song", "somebody waits for a word"),
        ("and the token comes", "the page fills with light", "no place stays empty"),
    ),
    "morning": (
        ("The first light comes in", "Steam above the cup", "A new day begins"),
        ("the blackbird clears its small throat", "the newspaper waits outside", "the street is empty and wide"),
        ("nothing is too late", "I open the door", "the bread is still warm"),
    ),
    "the forest": (
        ("Deep among the trees", "Moss on every stone", "The wood holds its breath"),
        ("a woodpecker knocks and waits", "an old path forgets its way", "light falls down in golden coins"),
        ("nobody answers", "a deer lifts its head", "I walk without sound"),
    ),
    "love": (
        ("Two cups on the sill", "Your hand in my hand", "You hum in the hall"),
        ("we say nothing for an hour", "the long road becomes a walk", "the house has learned your footsteps"),
        ("and it is enough", "even rain is warm", "stay a while with me"),
    ),
}  # fmt: skip
COUPLETS = (
    ("The moon came up behind the hill,", "and all the little town was still."),
    ("A mouse put on a paper hat", "and bowed politely to the cat."),
    ("The wind went singing through the tree", "and told it stories of the sea."),
    ("A little boat sailed out one day", "and found an island far away."),
    ("The rain fell down upon the lane,", "and then the sun came out again."),
    ("I planted one small seed in spring,", "and in the tree the thrushes sing."),
    ("The stars are small, the night is wide,", "and there is room for all inside."),
    ("The baker rises with the sun", "and gives us each a sugar bun."),
    ("An owl sat up all night to read", "and found it had all books agreed."),
    ("The river hurries to the bay", "and never asks about the way."),
    ("A carousel goes round and round,", "its horses never touch the ground."),
    ("A friend is like a warming light", "that someone left on in the night."),
    ("The snow has hidden every track,", "but spring will bring the colours back."),
    ("The clock says one, the clock says two,", "and every hour is something new."),
    ("So close your eyes, the day is done,", "tomorrow brings another one."),
    ("And if you listen, you will hear", "the quiet footsteps of the year."),
    ("The old dog dreams beside the fire", "of hills he climbed and did not tire."),
    ("A snail set out to see the town", "and took all day to hurry down."),
)  # fmt: skip
SUBJECT_COUPLETS = (
    ("There lived a {x} beside the bay,", "who loved to sing the whole long day."),
    ("I met a {x} one afternoon,", "who asked the way up to the moon."),
    ("A {x} went walking in the rain", "and found the sun, and came again."),
    ("Oh, little {x}, so bright and small,", "I think I love you best of all."),
    ("A {x} once sat upon a wall", "and was not very big at all."),
    ("If you should meet a {x} at night,", "be kind to it, and be polite."),
)  # fmt: skip
THINGS = (
    "fox", "cat", "dog", "star", "mouse", "bear", "bird", "fish", "frog", "king", "queen", "cloud", "tree", "goat",
    "duck", "witch", "boat", "train", "snail", "owl", "ghost", "crow",
)  # fmt: skip


def haiku_text(w: Writer, theme: str) -> str:
    first, second, third = (w.pick(lines) for lines in HAIKU[theme])
    return f"{first},\n{second},\n{third}."


HAIKU_ASKS = (
    "Write a haiku.", "Give me a haiku.", "Tell me a haiku.", "haiku please", "Can you write a haiku?",
    "Compose a haiku.", "Do you know a haiku?", "I would like a haiku.",
)  # fmt: skip
HAIKU_ASKS_2 = (
    "Write a haiku about {x}.", "Give me a haiku about {x}.", "haiku about {x}", "Compose a haiku about {x}.",
    "I would like a haiku about {x}.", "Can you write a haiku about {x}?", "Write me a haiku about {x}.",
    "Make a haiku about {x}.",
)  # fmt: skip


def haiku(w: Writer) -> Exchange:
    theme = w.pick(list(HAIKU))
    if w.chance(0.25):
        prompt = w.ask(HAIKU_ASKS)
    else:
        prompt = w.ask(HAIKU_ASKS_2, x=theme)
    return Exchange("poems", prompt, haiku_text(w, theme), again=lambda w: haiku_text(w, theme))


def verses(w: Writer, subject: str, stanzas: int) -> str:
    pairs = w.run_of(COUPLETS, stanzas * 2)
    if subject:
        pairs[0] = tuple(line.format(x=subject) for line in w.pick(SUBJECT_COUPLETS))  # type: ignore[assignment]
    return "\n\n".join(
        "\n".join(line for pair in pairs[at : at + 2] for line in pair) for at in range(0, stanzas * 2, 2)
    )


POEM_ASKS = (
    "Write a {size}poem about a {x}.", "Give me a {size}poem about a {x}.", "{size}poem about a {x}",
    "I would like a {size}poem about a {x}.", "Write me a {size}poem about a {x}.", "Compose a {size}poem about a {x}.",
    "Make a {size}rhyme about a {x}.", "Write a {size}verse about a {x}.",
)  # fmt: skip


def poem(w: Writer) -> Exchange:
    subject = w.pick(THINGS) if w.chance(0.6) else ""
    size, stanzas = w.pick((("", 2), ("", 2), ("short ", 1), ("long ", 4)))
    if subject:
        prompt = w.ask(POEM_ASKS, x=subject, size=size)
    else:
        prompt = w.ask(
            (
                "Write a {size}poem.",
                "Tell me a {size}poem.",
                "Write me a {size}poem.",
                "Can you write a {size}poem?",
                "Give me a {size}poem.",
                "Do you know a {size}poem?",
                "a {size}poem please",
                f"Write a {{size}}poem for {w.pick(SHE_NAMES)}.",
            ),
            size=size,
        )
    return Exchange(
        "poems",
        prompt,
        verses(w, subject, stanzas),
        short=verses(w, subject, 1),
        again=lambda w: verses(w, subject, stanzas),
    )


MAKERS = ((haiku, 2), (poem, 3))
