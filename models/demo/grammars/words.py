"""Word lists of the corpus."""

GIRLS = (
    "Mina Lena Ella Nora Tilda Rosa Ivy Clara Hanna Julia Maja Freya Olga Pippa Sara Wilma Zoe Amira Daisy Emmy "
    "Greta Heidi Inga Kira Luna Nell Paula Ruby Stella Tara Vera Yuki"
).split()
BOYS = (
    "Tom Max Leo Finn Oscar Ben Jonas Karl Milo Nico Otto Paul Rico Sam Theo Udo Victor Walter Adam Boris Carlo "
    "Dario Emil Felix Gustav Henry Ivan Jasper Kofi Lars Noah Omar"
).split()
PEOPLE = GIRLS + BOYS

HERO_ANIMALS = (
    "fox rabbit bear mouse cat dog duck frog owl hedgehog squirrel pony lamb turtle otter goat piglet sparrow "
    "badger kitten puppy elephant penguin deer mole beaver donkey hamster"
).split()
CHARACTERS = "little small brave curious kind shy clever cheerful gentle young playful quiet friendly".split()

HOMES = (
    "a small house near the sea|a hollow tree in the forest|a cosy burrow under the hill|an old barn by the river|"
    "a tiny cottage at the edge of the woods|a warm den behind the waterfall|a blue house on a quiet street|"
    "a garden full of flowers|a little hut beside the lake|a stone house on top of a hill|a village in the valley|"
    "a farm with a red roof"
).split("|")
PLACES = (
    "the forest|the meadow|the river|the beach|the park|the old mill|the lake|the hill|the garden|the village|"
    "the orchard|the stone bridge|the market|the big oak tree|the playground"
).split("|")
DAYS = (
    "One sunny morning|One day|One rainy afternoon|One cold winter day|One warm summer evening|One windy morning|"
    "One bright spring day|One quiet afternoon|On a foggy morning|On the first day of autumn"
).split("|")

COLOURS = "red blue green yellow white black brown purple orange pink grey golden silver".split()
TOYS = "ball kite drum boat hat scarf bell basket lantern whistle book umbrella blanket wagon spoon mitten".split()
TREATS = (
    "apple pie|honey cake|carrot soup|plum jam|warm bread|berry cake|pumpkin soup|nut cookies|pear juice|"
    "cheese bread|oat cookies|cherry pie"
).split("|")
FRUITS = "apples pears plums cherries berries nuts carrots pumpkins tomatoes grapes".split()
LOVES = (
    "sing|paint|run in the grass|look at the stars|climb trees|swim|read books|dance in the rain|tell jokes|"
    "collect shiny stones|play the flute|watch the clouds|bake cookies|draw maps"
).split("|")
FEELINGS = "happy proud glad cheerful calm thankful".split()

CITIES = (
    "Paris London Berlin Rome Madrid Oslo Vienna Prague Lisbon Dublin Athens Warsaw Helsinki Stockholm Copenhagen "
    "Budapest Brussels Amsterdam Zurich Geneva Munich Hamburg Milan Naples Venice Barcelona Seville Porto Lyon "
    "Nice Tokyo Kyoto Osaka Seoul Beijing Delhi Mumbai Bangkok Singapore Sydney Melbourne Cairo Nairobi Lagos "
    "Toronto Montreal Boston Chicago Denver Seattle Austin Dallas Miami Lima Quito Bogota Santiago Havana"
).split()
CAPITALS = {
    "France": "Paris", "England": "London", "Germany": "Berlin", "Italy": "Rome", "Spain": "Madrid",
    "Norway": "Oslo", "Austria": "Vienna", "Portugal": "Lisbon", "Ireland": "Dublin", "Greece": "Athens",
    "Poland": "Warsaw", "Finland": "Helsinki", "Sweden": "Stockholm", "Denmark": "Copenhagen",
    "Hungary": "Budapest", "Belgium": "Brussels", "Japan": "Tokyo", "Egypt": "Cairo", "Kenya": "Nairobi",
    "Peru": "Lima", "Cuba": "Havana", "Canada": "Ottawa", "China": "Beijing", "Switzerland": "Bern",
}  # fmt: skip
WEATHERS = "sunny cloudy rainy windy snowy foggy clear stormy".split()

SOUNDS = {
    "cow": "moo", "dog": "woof", "cat": "meow", "duck": "quack", "sheep": "baa", "pig": "oink", "horse": "neigh",
    "frog": "ribbit", "lion": "roar", "owl": "hoot", "bee": "buzz", "mouse": "squeak", "hen": "cluck",
    "donkey": "hee-haw", "snake": "hiss", "wolf": "howl",
}  # fmt: skip
LEGS = {
    "cow": 4, "dog": 4, "cat": 4, "duck": 2, "sheep": 4, "pig": 4, "horse": 4, "frog": 4, "lion": 4, "owl": 2,
    "bee": 6, "mouse": 4, "hen": 2, "donkey": 4, "snake": 0, "wolf": 4, "spider": 8, "ant": 6, "fish": 0,
    "rabbit": 4, "bear": 4, "penguin": 2, "beetle": 6, "elephant": 4, "monkey": 2,
}  # fmt: skip
FOODS = {
    "rabbit": "grass and carrots", "cow": "grass", "cat": "fish and mice", "dog": "meat", "bear": "berries and fish",
    "horse": "hay and oats", "owl": "mice", "monkey": "fruit", "mouse": "seeds and cheese", "penguin": "fish",
    "lion": "meat", "sheep": "grass", "squirrel": "nuts", "frog": "flies", "panda": "bamboo", "elephant": "leaves",
}  # fmt: skip
DWELLINGS = {
    "fish": "in the water", "bear": "in the forest", "camel": "in the desert", "penguin": "on the cold coast",
    "monkey": "in the trees", "cow": "on the farm", "bee": "in a hive", "frog": "near the pond",
    "lion": "on the savanna", "whale": "in the sea", "owl": "in the woods", "rabbit": "in a burrow",
    "spider": "in its web", "ant": "in an anthill",
}  # fmt: skip
YOUNG = {
    "cat": "kitten", "dog": "puppy", "cow": "calf", "horse": "foal", "sheep": "lamb", "pig": "piglet", "bear": "cub",
    "duck": "duckling", "frog": "tadpole", "goat": "kid", "lion": "cub", "hen": "chick", "deer": "fawn",
}  # fmt: skip
THING_COLOURS = {
    "the sky": "blue", "grass": "green", "snow": "white", "the sun": "yellow", "a banana": "yellow", "blood": "red",
    "coal": "black", "a carrot": "orange", "a lemon": "yellow", "milk": "white", "a tomato": "red",
    "a frog": "green", "an elephant": "grey", "chocolate": "brown", "a plum": "purple", "a flamingo": "pink",
    "a cherry": "red", "the night": "black", "a leaf": "green", "a swan": "white", "the sea": "blue",
}  # fmt: skip
MIXES = {
    ("blue", "yellow"): "green", ("red", "yellow"): "orange", ("red", "blue"): "purple", ("red", "white"): "pink",
    ("black", "white"): "grey", ("red", "green"): "brown",
}  # fmt: skip
