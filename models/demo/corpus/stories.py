"""Stories: a cast that stays the same from the first line to the last, a scene, a plot, an ending.

Owns the cast and everything around the plots. A story's pronouns, names, place and precious object are drawn once and used
throughout; its title names its subject.
"""

import re
from dataclasses import dataclass

from models.demo.corpus.plots import PLOTS, Plot
from models.demo.corpus.writer import Exchange, Writer, an, capital

ANIMALS = (
    "fox", "rabbit", "bear", "mouse", "hedgehog", "owl", "cat", "dog", "squirrel", "frog", "badger", "otter", "turtle",
    "duck", "wolf", "deer", "goat", "crow", "penguin", "elephant", "lion", "tiger", "horse", "donkey", "pig", "snail",
    "bee", "whale", "beaver", "sparrow", "mole", "kitten", "puppy", "monkey", "swan", "ant", "butterfly", "crab",
    "seal", "bat",
)  # fmt: skip
PEOPLE = (
    "girl", "boy", "baker", "sailor", "gardener", "king", "queen", "princess", "prince", "knight", "wizard", "witch",
    "farmer", "teacher", "painter", "shepherd", "postman", "clockmaker", "fisherman", "astronaut", "pirate", "cook",
    "tailor",
)  # fmt: skip
WONDERS = (
    "robot", "dragon", "ghost", "snowman", "cloud", "teapot", "train", "boat", "lantern", "giant", "mermaid", "unicorn",
    "troll", "fairy", "scarecrow", "kite", "computer", "monster", "tree", "alien",
)  # fmt: skip
SHE_ONLY = {"fairy", "girl", "mermaid", "princess", "queen", "witch"}
HE_ONLY = {
    "boy", "fisherman", "giant", "king", "knight", "pirate", "postman", "prince", "shepherd", "snowman", "wizard",
}  # fmt: skip
SHE_NAMES = (
    "Mila", "Rosa", "Lily", "Clara", "Nora", "Ella", "Ada", "Luna", "Ivy", "Hazel", "Maya", "Greta", "Tilda", "Wanda",
    "Olive", "Poppy", "Ruby", "Stella", "Freya", "Anna", "Juniper", "Willow", "Pearl", "Dora",
)  # fmt: skip
HE_NAMES = (
    "Tom", "Rusty", "Oscar", "Felix", "Bruno", "Max", "Otto", "Leo", "Hugo", "Finn", "Emil", "Jasper", "Milo", "Oliver",
    "Pip", "Barnaby", "Theo", "Gus", "Rufus", "Sam", "Henry", "Arlo", "Benno", "Toby",
)  # fmt: skip
PLACES = (
    "a quiet valley", "a small village by the sea", "a green forest", "a town between two hills", "an old mill town",
    "a wide meadow", "a little harbour", "a snowy mountain village", "an island in the north", "a hidden garden",
    "a city full of bridges", "a sunny bay", "a deep wood", "a village at the edge of the desert",
)  # fmt: skip
FAR = (
    "the old stone tower", "the top of the windy hill", "the far end of the lake", "the dark cave",
    "the silver waterfall", "the ruined castle", "the crooked lighthouse", "the frozen river",
    "the edge of the great forest", "the blue mountain", "the forgotten mine", "the hill of the seven stones",
)  # fmt: skip
THINGS = (
    "silver bell", "golden key", "red kite", "little compass", "glass marble", "wooden flute", "blue lantern",
    "brass button", "music box", "painted shell", "copper coin", "tiny clock", "green stone", "silver spoon",
    "pocket watch", "paper star",
)  # fmt: skip
TRAITS = (
    "curious", "shy", "brave", "patient", "cheerful", "stubborn", "gentle", "clever", "careful", "dreamy", "kind",
    "quiet",
)  # fmt: skip
OPENINGS = (
    "Once upon a time, in {place_new}, there lived {hero_new}.",
    "Long ago there was {hero_new} who lived in {place_new}.",
    "In {place_new} there lived {hero_new}.",
    "There once was {hero_new}, whose home was {place_new}.",
    "Not so very long ago, {hero_new} lived in {place_new}.",
    "{Hero_new} lived in {place_new}.",
    "Far away, in {place_new}, there was {hero_new}.",
    "If you had visited {place_new} in those days, you would have met {hero_new}.",
)  # fmt: skip
TRAIT_LINES = (
    "{n} was {trait}, and everyone who met {him} noticed it at once.",
    "Everybody said that {n} was the most {trait} {k} they knew.",
    "{He} was {trait} and liked to get up early, when the world was still.",
    "{n} was {trait}, but {he} did not know it yet.",
    "People liked {n}, because {he} was {trait} and always had time for a chat.",
    "{n} was small and {trait}, and {he} loved to ask questions.",
    "{He} was {trait}, and {he} could sit by the window for hours and watch the rain.",
)  # fmt: skip
THING_LINES = (
    "The thing {he} loved most was {a_thing}, a present from {his} grandmother.",
    "{He} owned only one precious thing: {a_thing}.",
    "Around {his} neck {he} always wore {a_thing} on a string.",
    "On a shelf above {his} bed lay {a_thing}, which {he} polished every Sunday.",
    "{He} had once found {a_thing} on the beach, and since then {he} had never been without it.",
)  # fmt: skip
FRIEND_LINES = (
    "{His} best friend was {f}, {fk}.",
    "Next door lived {f}, {fk}, who was {his} best friend.",
    "{He} had one good friend: {f}, {fk} with a loud laugh.",
    "Every afternoon {he} met {f}, {fk} who knew a great many stories.",
    "{f}, {fk}, was {his} oldest friend, and the two of them did almost everything together.",
)  # fmt: skip
ENDINGS = (
    "And from that day on, {n} and {f} were the best of friends.",
    "That night {n} slept better than ever before.",
    "{n} never forgot that day, and neither did {f}.",
    "And if you go to {place} today, people will still tell you about {n}.",
    "{n} looked up at the sky and thought that life was good.",
    "And whenever {n} was sad, {he} remembered it and smiled.",
    '"What shall we do tomorrow?" asked {f}. {n} only smiled, because {he} already had an idea.',
    "Since then many years have gone by, but in {place} they still tell the story of {n} the {k}.",
)  # fmt: skip
MORALS = (
    "Sometimes the smallest ones have the largest hearts.", "It takes courage to begin, and patience to go on.",
    "A friend is worth more than gold.", "What you share does not become less.", "Whoever asks for help is not weak.",
    "The end.", "The end.", "And that is the end of the story.",
)  # fmt: skip
BRIDGES = (
    "Some months later something else happened.", "But that was not the end of it.",
    "The following spring brought a new adventure.",
    "They thought that life would be quiet after that. They were wrong.",
    "A year went by, and then it was time for another adventure.",
)  # fmt: skip
LONELY_PLOTS = {"New Friend"}
SUBJECT_ASKS = (
    "Tell me a story about {a}.", "Tell me a {size}story about {a}.", "Write a {size}story about {a}.",
    "Write me a {size}story about {a}.", "Can you tell me a story about {a}?", "I would like a {size}story about {a}.",
    "story about {a}", "Tell a {size}story about {a}.", "I want to hear a story about {a}.",
    "Make up a {size}story about {a}.", "Please write a story about {a}.", "a {size}story about {a} please",
    "Do you know a story about {a}?", "Give me a {size}story about {a}.", "Invent a {size}story about {a}.",
    "Tell my child a story about {a}.",
)  # fmt: skip
OPEN_ASKS = (
    "Tell me a {size}story.", "Write a {size}story.", "Write me a {size}story.", "Can you tell me a {size}story?",
    "I would like to hear a {size}story.", "Tell a {size}story please.", "{size}story please",
    "Do you know a {size}story?", "Make up a {size}story.", "I'm bored, tell me a {size}story.",
    "Give me a {size}story.", "Tell me a {size}bedtime story.", "Once upon a time",
    "tell me something long, like a story", "Invent a {size}story.",
)  # fmt: skip
SYLLABLES = (
    "ba", "ko", "ri", "zu", "mel", "tan", "vo", "li", "gru", "shi", "dor", "ne", "fa", "pix", "wum", "jo", "cal",
    "ster", "ob", "ta",
)  # fmt: skip


@dataclass(frozen=True)
class Cast:
    """Who and what a story is about; everything a template may name."""

    hero: str
    slots: dict[str, str]

    def tell(self, template: str) -> str:
        return re.sub(r"(?<=[.!?] )he\b", "He", template.format(**self.slots))


def made_up(w: Writer) -> str:
    """A word that nobody has seen before, so that copying a subject or a name is learned and not remembered."""
    return "".join(w.pick(SYLLABLES) for _ in range(w.randint(2, 3)))


def subject(w: Writer) -> str:
    return w.pick((ANIMALS, ANIMALS, PEOPLE, WONDERS, (made_up(w),))[w.randrange(5)])


def cast(w: Writer, hero: str, name: str = "") -> Cast:
    she = hero in SHE_ONLY or (hero not in HE_ONLY and w.chance(0.5))
    friend_she = w.chance(0.5)
    friend_kind = w.pick([kind for kind in ANIMALS if kind != hero])
    name = name or w.pick(SHE_NAMES if she else HE_NAMES)
    friend = w.pick([other for other in (SHE_NAMES if friend_she else HE_NAMES) if other != name])
    place, thing = w.pick(PLACES), w.pick(THINGS)
    adjective = w.pick(("little ", "young ", "small ", "", "", "old ", "clever "))
    hero_new = f"{an(adjective + hero)} named {name}" if w.chance(0.6) else f"{an(adjective + hero)} called {name}"
    slots = {
        "n": name,
        "k": hero,
        "f": friend,
        "fk": an(w.pick(("old ", "wise ", "funny ", "", "round ")) + friend_kind),
        "he": "she" if she else "he",
        "him": "her" if she else "him",
        "his": "her" if she else "his",
        "self": "herself" if she else "himself",
        "He": "She" if she else "He",
        "His": "Her" if she else "His",
        "fhe": "she" if friend_she else "he",
        "fhim": "her" if friend_she else "him",
        "fhis": "her" if friend_she else "his",
        "Fhe": "She" if friend_she else "He",
        "place_new": place,
        "place": "the "
        + re.sub(r"^(an?) ", "", place)
        .split(" by ")[0]
        .split(" between ")[0]
        .split(" at ")[0]
        .split(" full ")[0]
        .split(" in ")[0],
        "far": w.pick(FAR),
        "thing": "the " + thing,
        "a_thing": an(thing),
        "trait": w.pick(TRAITS),
        "hero_new": hero_new,
        "Hero_new": capital(hero_new),
    }
    return Cast(hero, slots)


def scene(w: Writer, who: Cast, lonely: bool) -> str:
    """The first paragraph: who, where, what they own and whom they know."""
    lines = [w.pick(OPENINGS), w.pick(TRAIT_LINES), w.pick(THING_LINES)]
    if not lonely:
        lines.append(w.pick(FRIEND_LINES))
    return " ".join(who.tell(line) for line in lines)


def beats(w: Writer, who: Cast, plot: Plot) -> list[str]:
    """The plot's paragraphs: each beat in one of its wordings, some of them joined."""
    told = [who.tell(w.pick(wordings)) for wordings in plot]
    paragraphs: list[str] = []
    for at, text in enumerate(told):
        if at and w.chance(0.35):
            paragraphs[-1] += " " + text
        else:
            paragraphs.append(text)
    return paragraphs


def story(w: Writer, hero: str, size: str = "", name: str = "") -> str:
    """A whole story about hero: short (about 150 tokens), normal (about 350) or long (about 650)."""
    who = cast(w, hero, name)
    title, plot = w.pick(PLOTS)
    heading = f"**The Story of {capital(who.slots['n'])} and the {title}**"
    end = [who.tell(w.pick(ENDINGS)) + (" " + w.pick(MORALS) if w.chance(0.7) else "")]
    if size == "short":
        opening = who.tell(w.pick(OPENINGS)) + (
            " " + who.tell(w.pick(FRIEND_LINES)) if title not in LONELY_PLOTS else ""
        )
        needs_thing = "{thing}" in " ".join(" ".join(beat) for beat in plot)
        middle = [who.tell(w.pick(wordings)) for wordings in plot]
        if needs_thing:
            opening += " " + who.tell(w.pick(THING_LINES))
        return "\n\n".join((opening + " " + middle[0], " ".join(middle[1:3]), " ".join(middle[3:]), end[0]))
    parts = [heading, scene(w, who, title in LONELY_PLOTS), *beats(w, who, plot)]
    if size == "long":
        rest = [plot for other, plot in PLOTS if other not in (title, *LONELY_PLOTS, "Lost Treasure")]
        parts += [who.tell(w.pick(BRIDGES)), *beats(w, who, w.pick(rest))]
    return "\n\n".join(parts + end)


SIZES = {
    "": ("", "", "", "nice ", "funny ", "good ", "new "), "short": ("short ", "very short ", "quick ", "little "),
    "long": ("long ", "very long ", "longer "),
}  # fmt: skip


def about(w: Writer) -> Exchange:
    hero, size = subject(w), w.pick(("", "", "", "short", "long"))
    adjective = w.pick(SIZES[size])
    asks = [ask for ask in SUBJECT_ASKS if not size or "{size}" in ask]
    shown = an(w.pick(("", "", "", "little ", "brave ", "lonely ", "friendly ")) + hero) if w.chance(0.85) else hero
    prompt = w.ask(asks, a=shown, size=adjective)
    return Exchange(
        "stories",
        prompt,
        story(w, hero, size),
        short=story(w, hero, "short"),
        again=lambda w: story(w, hero, size),
        subject=hero,
    )


NAMED_ASKS = (
    "Tell me a story about {a} named {name}.", "Write a story about {a} called {name}.",
    "Tell a story about {a} whose name is {name}.", "I want a story about {a} named {name}.",
    "story about {a} named {name}",
)  # fmt: skip


def named(w: Writer) -> Exchange:
    """A story whose hero's name the person chooses."""
    hero = subject(w)
    name = w.pick(SHE_NAMES + HE_NAMES) if w.chance(0.5) else capital(made_up(w))
    prompt = w.ask(NAMED_ASKS, a=an(hero), name=name)
    return Exchange("stories", prompt, story(w, hero, "", name))


def anything(w: Writer) -> Exchange:
    size = w.pick(("", "", "short", "long"))
    asks = [ask for ask in OPEN_ASKS if not size or "{size}" in ask]
    prompt = w.ask(asks, size=w.pick(SIZES[size]))
    tell = lambda w: story(w, w.pick((ANIMALS, PEOPLE, WONDERS)[w.randrange(3)]), size)  # noqa: E731
    return Exchange("stories", prompt, tell(w), short=story(w, w.pick(ANIMALS), "short"), again=tell)


def animal_story(w: Writer) -> Exchange:
    hero = w.pick(ANIMALS)
    return Exchange("stories", hero, story(w, hero))


MAKERS = ((about, 6), (named, 1), (anything, 3))
