"""Words that mean something: functions, units, numbers in words, answers in words, and cues that announce an answer."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

FUNCTIONS = frozenset(
    [
        "sin",
        "cos",
        "tan",
        "cot",
        "sec",
        "csc",
        "arcsin",
        "arccos",
        "arctan",
        "sinh",
        "cosh",
        "tanh",
        "asin",
        "acos",
        "atan",
        "log",
        "ln",
        "lg",
        "exp",
        "sqrt",
        "cbrt",
        "gcd",
        "lcm",
        "max",
        "min",
        "abs",
    ]
)
CONSTANTS = {"pi": "pi", "infty": "inf", "infinity": "inf", "inf": "inf", "oo": "inf"}
NUMBER_SETS = {"R": "R", "Z": "Z", "N": "N", "Q": "Q", "C": "C"}

SCALES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
BASES = {
    **dict(
        zip(
            ["two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"],
            range(2, 13),
            strict=True,
        )
    ),
    "sixteen": 16,
}

# Words that may not stand after a number as if they named what is counted.
STOP = frozenset(
    [
        "a",
        "about",
        "above",
        "after",
        "all",
        "also",
        "an",
        "and",
        "any",
        "are",
        "as",
        "at",
        "atleast",
        "because",
        "before",
        "below",
        "between",
        "but",
        "by",
        "can",
        "cannot",
        "correct",
        "could",
        "does",
        "each",
        "either",
        "equal",
        "equals",
        "even",
        "except",
        "exactly",
        "few",
        "fewer",
        "for",
        "from",
        "greater",
        "half",
        "has",
        "have",
        "if",
        "incorrect",
        "into",
        "is",
        "isn",
        "it",
        "its",
        "least",
        "less",
        "more",
        "most",
        "neither",
        "no",
        "none",
        "nor",
        "not",
        "odd",
        "of",
        "off",
        "on",
        "only",
        "or",
        "other",
        "out",
        "over",
        "per",
        "plus",
        "minus",
        "mod",
        "modulo",
        "quarter",
        "remainder",
        "since",
        "so",
        "some",
        "than",
        "that",
        "the",
        "then",
        "there",
        "third",
        "this",
        "times",
        "to",
        "true",
        "false",
        "under",
        "unless",
        "until",
        "up",
        "was",
        "were",
        "where",
        "which",
        "with",
        "without",
        "wrong",
        "would",
        "yes",
        "maybe",
        "perhaps",
        "hundred",
        "thousand",
        "million",
        "billion",
        "trillion",
        "dozen",
        "percent",
        "negative",
        "positive",
        "infinity",
        "squared",
        "cubed",
    ]
)

# Short words that are no products of letters.
PROSE = frozenset(
    [
        "we",
        "he",
        "she",
        "me",
        "my",
        "us",
        "our",
        "her",
        "his",
        "him",
        "you",
        "add",
        "get",
        "sum",
        "two",
        "one",
        "six",
        "ten",
        "who",
        "why",
        "how",
        "did",
        "do",
        "go",
        "too",
        "day",
        "men",
        "man",
        "now",
        "use",
        "see",
        "say",
        "way",
        "let",
        "got",
        "put",
        "may",
        "new",
        "old",
        "add",
        "cat",
        "dog",
        "red",
        "yes",
        "am",
        "an",
        "as",
        "at",
        "be",
        "by",
        "if",
        "it",
        "no",
        "on",
        "so",
        "to",
        "up",
        "ok",
        "oh",
        "hi",
    ]
)

# Answers that are words. The value is what they mean; two words with one meaning are equal.
ANSWERS = {
    "no solution": "empty",
    "no solutions": "empty",
    "no real solution": "empty",
    "no real solutions": "empty",
    "there is no solution": "empty",
    "empty set": "empty",
    "the empty set": "empty",
    "all real numbers": "reals",
    "all reals": "reals",
    "yes": "yes",
    "no": "no",
    "true": "true",
    "false": "false",
    "even": "even",
    "odd": "odd",
    "none": "none",
    "neither": "neither",
    "both": "both",
    "does not exist": "undefined",
    "dne": "undefined",
    "undefined": "undefined",
    "infinitely many": "infinitely many",
    "infinitely many solutions": "infinitely many",
}


@dataclass(frozen=True, slots=True)
class Unit:
    """What a number is a number of.

    Attributes:
        dims: dimension and power, sorted; ("noun", 0) never stands here.
        factor: how many base units one of it is.
        noun: words that are no known unit ("apples"); then `dims` is empty.
    """

    dims: tuple[tuple[str, int], ...] = ()
    factor: Fraction = Fraction(1)
    noun: str = ""


def _units() -> dict[str, Unit]:
    table: dict[str, tuple[str, str]] = {
        "length": (
            "1",
            "1 m meter metre|1/100 cm centimeter centimetre|1/1000 mm millimeter millimetre|1000 km kilometer kilometre"
            "|127/5000 inch inche in|381/1250 ft foot feet|1143/1250 yd yard|201168/125 mi mile|1/1000000 µm micrometer"
            "|1/1000000000 nm nanometer|1/10 dm decimeter",
        ),
        "time": (
            "1",
            "1 s sec second|60 min minute|3600 h hr hour|86400 day|604800 week wk|1/1000 ms millisecond",
        ),
        "years": ("1", "year yr|1/12 month"),
        "mass": (
            "1",
            "1 kg kilogram|1/1000 g gram|1/1000000 mg milligram|1000 tonne|45359237/100000000 lb pound"
            "|45359237/1600000000 oz ounce",
        ),
        "usd": ("1", "usd dollar buck|1/100 cent ¢"),
        "eur": ("1", "eur euro"),
        "gbp": ("1", "gbp"),
        "angle": ("1", "degree deg|1/60 arcminute|1/3600 arcsecond"),
        "kelvin": ("1", "kelvin"),
        "celsius": ("1", "°c celsius"),
        "fahrenheit": ("1", "°f fahrenheit"),
        "energy": ("1", "1 J joule|1000 kj kilojoule"),
        "force": ("1", "1 N newton"),
        "power": ("1", "1 W watt|1000 kw kilowatt"),
        "voltage": ("1", "1 V volt"),
        "frequency": ("1", "hz hertz|1000 khz|1000000 mhz"),
        "pressure": ("1", "pa pascal|1000 kpa|101325 atm"),
        "amount": ("1", "mol mole"),
    }
    out: dict[str, Unit] = {}
    for dim, (_, entries) in table.items():
        for entry in entries.split("|"):
            first, *names = entry.split()
            if first[0].isdigit():
                factor = Fraction(first)
            else:
                factor, names = Fraction(1), [first, *names]
            for name in names:
                out[name] = Unit(((dim, 1),), factor)
    for name, parts in (("liter", 1), ("litre", 1), ("l", 1), ("L", 1), ("ml", 1000), ("mL", 1000), ("cc", 1000)):
        out[name] = Unit((("length", 3),), Fraction(1, 1000 * parts))
    out["milliliter"] = out["millilitre"] = out["ml"]
    out["mph"] = Unit((("length", 1), ("time", -1)), Fraction(201168, 125 * 3600))
    out["kph"] = Unit((("length", 1), ("time", -1)), Fraction(1000, 3600))
    out["kwh"] = Unit((("energy", 1),), Fraction(3_600_000))
    return out


UNITS = _units()


def unit_named(word: str) -> Unit | None:
    """The unit of a name or abbreviation, singular or plural, with or without a full stop; None if it is none."""
    word = word.rstrip(".")
    if word in UNITS:
        return UNITS[word]
    low = word.lower()
    if len(low) < 2:
        return None
    return UNITS.get(low) or (UNITS.get(low[:-1]) if low.endswith("s") and len(low) > 2 else None)


# "answer" in some languages. `cue_words` adds to them.
CUES = (
    "answer",
    "antwort",
    "réponse",
    "respuesta",
    "resposta",
    "risposta",
    "ответ",
    "odpowiedź",
    "svar",
    "antwoord",
    "cevap",
    "答案",
    "答え",
    "정답",
    "الجواب",
    "الإجابة",
    "उत्तर",
    "đáp án",
    "jawaban",
)
