"""Prompts with two continuations, the right one first. The study keeps those where the network prefers that one."""

from __future__ import annotations

from collections.abc import Iterator

_CAPITALS = (
    "France Paris, Italy Rome, Spain Madrid, Germany Berlin, England London, Russia Moscow, Japan Tokyo, "
    "China Beijing, Egypt Cairo, Greece Athens, Portugal Lisbon, Austria Vienna, Ireland Dublin, Cuba Havana, "
    "Kenya Nairobi, Iran Tehran, Turkey Ankara, Poland Warsaw, Hungary Budapest, Norway Oslo, Sweden Stockholm, "
    "Peru Lima, Iraq Baghdad, Canada Ottawa"
)
_LANGUAGES = (
    "France French, Germany German, Italy Italian, Spain Spanish, Russia Russian, Japan Japanese, China Chinese, "
    "Greece Greek, Sweden Swedish, Poland Polish, Portugal Portuguese, Turkey Turkish, Brazil Portuguese, "
    "Mexico Spanish"
)
_OPPOSITES = (
    "hot cold, big small, up down, left right, fast slow, happy sad, old new, dark light, open closed, rich poor, "
    "strong weak, wet dry, full empty, early late, easy difficult, true false, loud quiet, good bad, high low, "
    "hard soft"
)
_PLURALS = "keys friends teachers dogs boys flowers books cars doctors letters"
_SINGULARS = "key friend teacher dog boy flower book car doctor letter"
_PLACES = ("near the old house", "behind the tall trees", "from the other villages")
_KINDS = (
    "rose flower animal, oak tree fish, dog animal plant, salmon fish bird, eagle bird fish, hammer tool fruit, "
    "apple fruit tool, carrot vegetable metal, violin instrument vegetable, piano instrument fruit, ant insect bird, "
    "shark fish flower, tulip flower tool, guitar instrument animal, banana fruit animal, butterfly insect tool"
)
_ROWS = (
    "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "January February March April May June July August September October November December",
    "one two three four five six seven eight nine ten",
    "A B C D E F G H I J",
)
_PEOPLE = "Mary she he, John he she, Anna she he, Peter he she, Susan she he, David he she, Laura she he, Robert he she"
_LOST = ("lost the keys to the house, so", "was tired after the long day, so", "wanted to learn how to swim, so")
_FACTS = (
    ("The colour of fresh grass is", "green", "red"),
    ("The colour of a clear sky in the morning is", "blue", "green"),
    ("Water freezes and turns into", "ice", "fire"),
    ("The Earth moves around the", "Sun", "Moon"),
    ("Bees collect nectar and make", "honey", "milk"),
    ("Cows eat grass and give us", "milk", "honey"),
    ("The author of Hamlet and Macbeth is William", "Shakespeare", "Wordsworth"),
    ("A spider builds a web and has eight", "legs", "wings"),
    ("To see in the dark you need a", "light", "spoon"),
    ("She put the letter into an envelope and wrote the", "address", "water"),
    ("The fish swims in the", "water", "sky"),
    ("The bird flies in the", "sky", "water"),
    ("He was thirsty, so he drank a glass of", "water", "sand"),
    ("She was ill, so she went to see a", "doctor", "farmer"),
    ("The opposite side of north is", "south", "east"),
    ("The baby of a cat is called a", "kitten", "puppy"),
    ("The baby of a dog is called a", "puppy", "kitten"),
    ("The king sat beside his wife, the", "queen", "king"),
)


def _entries(text: str) -> list[list[str]]:
    return [entry.split() for entry in text.split(", ")]


def prompts() -> Iterator[tuple[str, str, str]]:
    """Prompt, right continuation, wrong continuation (each with the space before it)."""
    for known, frame in ((_CAPITALS, "The capital of {} is the city of"), (_LANGUAGES, "Most people in {} speak")):
        pairs = _entries(known)
        for (place, right), (_, wrong) in zip(pairs, pairs[3:] + pairs[:3], strict=True):
            if right != wrong:
                yield frame.format(place), f" {right}", f" {wrong}"
    pairs = _entries(_OPPOSITES)
    for (word, right), (_, wrong) in zip(pairs, pairs[1:] + pairs[:1], strict=True):
        yield f"The opposite of the word {word} is the word", f" {right}", f" {wrong}"
    for many, one in zip(_PLURALS.split(), _SINGULARS.split(), strict=True):
        for place in _PLACES:
            yield f"The {many} {place}", " are", " is"
            yield f"The {one} {place}", " is", " are"
    for thing, right, wrong in _entries(_KINDS):
        article = "An" if thing[0] in "aeiou" else "A"
        yield f"{article} {thing} is a kind of", f" {right}", f" {wrong}"
    for row in map(str.split, _ROWS):
        for i in range(len(row) - 4):
            yield " ".join(row[i : i + 4]), f" {row[i + 4]}", f" {row[i + 1]}"
    for name, right, wrong in _entries(_PEOPLE):
        for what in _LOST:
            yield f"{name} {what}", f" {right}", f" {wrong}"
    for prompt, right, wrong in _FACTS:
        yield prompt, f" {right}", f" {wrong}"
