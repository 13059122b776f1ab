"""What the model is taught to be true. Owns the tables and nothing else; facts.py and markdown.py ask about them."""

CAPITALS = {
    "France": "Paris", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid", "Portugal": "Lisbon",
    "England": "London", "Ireland": "Dublin", "Norway": "Oslo", "Sweden": "Stockholm", "Finland": "Helsinki",
    "Denmark": "Copenhagen", "Iceland": "Reykjavik", "Poland": "Warsaw", "Austria": "Vienna", "Hungary": "Budapest",
    "Greece": "Athens", "Turkey": "Ankara", "Russia": "Moscow", "Ukraine": "Kyiv", "Switzerland": "Bern",
    "Belgium": "Brussels", "the Netherlands": "Amsterdam", "Japan": "Tokyo", "China": "Beijing", "India": "New Delhi",
    "Thailand": "Bangkok", "Vietnam": "Hanoi", "South Korea": "Seoul", "Egypt": "Cairo", "Kenya": "Nairobi",
    "Morocco": "Rabat", "Ghana": "Accra", "Canada": "Ottawa", "Mexico": "Mexico City", "Brazil": "Brasilia",
    "Argentina": "Buenos Aires", "Chile": "Santiago", "Peru": "Lima", "Cuba": "Havana", "Australia": "Canberra",
    "New Zealand": "Wellington", "the United States": "Washington", "Indonesia": "Jakarta", "Nepal": "Kathmandu",
}  # fmt: skip
FAR_COUNTRIES = (
    "Bhutan", "Malta", "Oman", "Togo", "Fiji", "Chad", "Laos", "Bolivia", "Angola", "Qatar", "Zambia", "Tonga", "Mali",
    "Yemen", "Latvia", "Albania", "Georgia", "Uruguay", "Haiti", "Niger",
)  # fmt: skip
OPPOSITES = [
    ("hot", "cold"), ("big", "small"), ("tall", "short"), ("fast", "slow"), ("up", "down"), ("left", "right"),
    ("day", "night"), ("light", "dark"), ("happy", "sad"), ("open", "closed"), ("early", "late"), ("full", "empty"),
    ("hard", "soft"), ("heavy", "light"), ("high", "low"), ("in", "out"), ("loud", "quiet"), ("new", "old"),
    ("young", "old"), ("rich", "poor"), ("strong", "weak"), ("wet", "dry"), ("good", "bad"), ("clean", "dirty"),
    ("near", "far"), ("thick", "thin"), ("wide", "narrow"), ("first", "last"), ("begin", "end"), ("push", "pull"),
    ("give", "take"), ("love", "hate"), ("true", "false"), ("black", "white"), ("summer", "winter"),
    ("easy", "difficult"), ("front", "back"), ("always", "never"), ("win", "lose"), ("sweet", "sour"),
]  # fmt: skip
COLOURS = {
    "the sky": "blue", "grass": "green", "snow": "white", "a banana": "yellow", "a strawberry": "red", "coal": "black",
    "a carrot": "orange", "the sun": "yellow", "a leaf": "green", "milk": "white", "a lemon": "yellow",
    "a tomato": "red", "chocolate": "brown", "an elephant": "grey", "a flamingo": "pink", "the sea": "blue",
    "a raven": "black", "a frog": "green", "a cherry": "red", "a pumpkin": "orange",
}  # fmt: skip
# animal: (sound or way, home, young, legs, food)
ANIMALS = {
    "dog": ("barks", "a house", "puppy", 4, "meat"), "cat": ("meows", "a house", "kitten", 4, "fish"),
    "cow": ("moos", "a field", "calf", 4, "grass"), "horse": ("neighs", "a stable", "foal", 4, "hay"),
    "sheep": ("bleats", "a meadow", "lamb", 4, "grass"), "duck": ("quacks", "a pond", "duckling", 2, "water plants"),
    "frog": ("croaks", "a pond", "tadpole", 4, "flies"), "lion": ("roars", "the savanna", "cub", 4, "meat"),
    "bear": ("growls", "the forest", "cub", 4, "berries and fish"),
    "owl": ("hoots", "a hollow tree", "owlet", 2, "mice"), "bee": ("buzzes", "a hive", "larva", 6, "nectar"),
    "pig": ("grunts", "a sty", "piglet", 4, "almost anything"), "goat": ("bleats", "the mountains", "kid", 4, "leaves"),
    "hen": ("clucks", "a coop", "chick", 2, "grain"), "wolf": ("howls", "the forest", "pup", 4, "meat"),
    "fox": ("barks", "a den", "cub", 4, "mice and berries"), "mouse": ("squeaks", "a hole", "pup", 4, "seeds"),
    "swan": ("hisses", "a lake", "cygnet", 2, "water plants"),
}  # fmt: skip
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS = {
    "January": 31, "February": 28, "March": 31, "April": 30, "May": 31, "June": 30, "July": 31, "August": 31,
    "September": 30, "October": 31, "November": 30, "December": 31,
}  # fmt: skip
RHYMES = (
    ("cat", "hat", "bat", "mat", "rat"), ("day", "play", "say", "way", "may"),
    ("light", "night", "bright", "sight", "kite"), ("tree", "bee", "sea", "free", "key"),
    ("moon", "spoon", "soon", "tune", "noon"), ("rain", "train", "lane", "plain", "crane"),
    ("star", "car", "far", "jar", "bar"), ("house", "mouse", "blouse", "grouse"),
    ("king", "ring", "sing", "wing", "spring"), ("boat", "coat", "goat", "note", "float"),
    ("bell", "well", "shell", "tell", "smell"), ("fox", "box", "rocks", "socks", "clocks"),
    ("snow", "slow", "grow", "go", "bow"), ("bear", "chair", "hair", "pear", "care"),
    ("ball", "wall", "tall", "fall", "small"), ("cake", "lake", "snake", "make", "wake"), ("dog", "log", "frog", "fog"),
    ("sun", "run", "fun", "bun", "one"),
)  # fmt: skip
LANGUAGES = {
    "French": {
        "hello": "bonjour", "thank you": "merci", "yes": "oui", "no": "non", "water": "eau", "bread": "pain",
        "cat": "chat", "dog": "chien", "house": "maison", "sun": "soleil", "moon": "lune", "good night": "bonne nuit",
        "friend": "ami", "book": "livre", "tree": "arbre", "milk": "lait", "red": "rouge", "day": "jour",
    },
    "Spanish": {
        "hello": "hola", "thank you": "gracias", "yes": "sí", "no": "no", "water": "agua", "bread": "pan",
        "cat": "gato", "dog": "perro", "house": "casa", "sun": "sol", "moon": "luna", "good night": "buenas noches",
        "friend": "amigo", "book": "libro", "tree": "árbol", "milk": "leche", "red": "rojo", "day": "día",
    },
    "German": {
        "hello": "hallo", "thank you": "danke", "yes": "ja", "no": "nein", "water": "Wasser", "bread": "Brot",
        "cat": "Katze", "dog": "Hund", "house": "Haus", "sun": "Sonne", "moon": "Mond", "good night": "gute Nacht",
        "friend": "Freund", "book": "Buch", "tree": "Baum", "milk": "Milch", "red": "rot", "day": "Tag",
    },
}  # fmt: skip
PLURALS = {
    "mouse": "mice", "child": "children", "foot": "feet", "tooth": "teeth", "goose": "geese", "man": "men",
    "woman": "women", "sheep": "sheep", "fish": "fish", "leaf": "leaves", "wolf": "wolves", "city": "cities",
    "box": "boxes", "cat": "cats", "dog": "dogs", "house": "houses",
}  # fmt: skip
# Several ways to ask, one answer.
GENERAL = (
    (
        ("How many days are in a week?", "How many days does a week have?", "What is the number of days in a week?"),
        "There are seven days in a week.",
    ),
    (("How many months are in a year?", "How many months does a year have?"), "There are twelve months in a year."),
    (("How many hours are in a day?", "How many hours does a day have?"), "There are 24 hours in a day."),
    (("How many minutes are in an hour?", "How many minutes does an hour have?"), "There are 60 minutes in an hour."),
    (("How many seconds are in a minute?", "How many seconds make a minute?"), "There are 60 seconds in a minute."),
    (("How many legs does a spider have?", "How many legs has a spider got?"), "A spider has eight legs."),
    (
        (
            "What is the largest planet?", "Which planet is the biggest?",
            "What's the biggest planet in the solar system?",
        ),
        "Jupiter is the largest planet in the solar system.",
    ),
    (("Which planet do we live on?", "What is the name of our planet?"), "We live on the planet Earth."),
    (("What is the largest ocean?", "Which ocean is the biggest?"), "The Pacific is the largest ocean."),
    (
        ("What is the largest animal?", "Which animal is the biggest in the world?"),
        "The blue whale is the largest animal.",
    ),
    (("What is the tallest animal?", "Which animal is the tallest?"), "The giraffe is the tallest animal."),
    (
        ("What is the fastest land animal?", "Which animal runs the fastest?"),
        "The cheetah is the fastest animal on land.",
    ),
    (
        ("What are the seasons?", "Name the four seasons.", "How many seasons are there?"),
        "There are four seasons: spring, summer, autumn and winter.",
    ),
    (("How many sides does a triangle have?", "How many sides has a triangle?"), "A triangle has three sides."),
    (("How many sides does a square have?", "How many sides has a square?"), "A square has four sides."),
    (("How many sides does a hexagon have?", "How many sides has a hexagon?"), "A hexagon has six sides."),
    (
        ("What are the primary colours?", "Name the primary colors.", "Which colours are primary?"),
        "The primary colours are red, yellow and blue.",
    ),
    (
        ("What are the colours of the rainbow?", "Name the colors of the rainbow.", "What colours are in a rainbow?"),
        "The colours of the rainbow are red, orange, yellow, green, blue, indigo and violet.",
    ),
    (("Is water wet?",), "Yes, water is wet, and anything it touches becomes wet too."),
    (
        ("At what temperature does water freeze?", "When does water freeze?", "What is the freezing point of water?"),
        "Water freezes at 0 degrees Celsius.",
    ),
    (
        ("At what temperature does water boil?", "When does water boil?", "What is the boiling point of water?"),
        "Water boils at 100 degrees Celsius.",
    ),
    (
        ("What are the days of the week?", "Name the days of the week.", "List the days of the week."),
        "The days of the week are Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday.",
    ),
    (
        ("What are the months of the year?", "Name the months.", "List the months of the year."),
        "The months are January, February, March, April, May, June, July, August, September, October, November and December.",
    ),
    (
        ("What is the alphabet?", "Say the alphabet.", "Write the alphabet."),
        "A, B, C, D, E, F, G, H, I, J, K, L, M, N, O, P, Q, R, S, T, U, V, W, X, Y, Z.",
    ),
    (("What do plants need to grow?", "What does a plant need?"), "Plants need light, water, air and good soil."),
    (
        ("Where does the sun rise?", "In which direction does the sun come up?"),
        "The sun rises in the east and sets in the west.",
    ),
    (("What do bees make?", "What is made by bees?"), "Bees make honey."),
    (("What is ice made of?", "What is ice?"), "Ice is frozen water."),
    (("What is rain?", "What is rain made of?"), "Rain is water that falls from the clouds in small drops."),
    (("What is the moon?", "Tell me what the moon is."), "The moon is a ball of rock that travels around the Earth."),
    (
        ("What is the sun?", "Tell me what the sun is."),
        "The sun is a star, and the Earth travels around it once a year.",
    ),
)  # fmt: skip
COUNT_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
