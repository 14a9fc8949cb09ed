"""What problems and thoughts sound like in four languages. All sentences are ours.

Words are parted by blanks, and `{...}` are filled in by `tasks`: a, b the numbers of the problem, f what is
reckoned, as a formula, r the result, n the thing counted, p a name.
"""

from __future__ import annotations

from dataclasses import dataclass, field

NAMES = ("Anna", "Paul", "Clara", "Max", "Nina", "Leo")
KINDS = ("add", "subtract", "multiply", "hours", "metres")


@dataclass(frozen=True)
class Language:
    """One language.

    Attributes:
        code: ISO 639-1.
        things: what is counted.
        minutes, centimetres: the words for what the two unit problems ask for.
        questions: by kind, ways to ask.
        openers: ways to begin a thought; one may be empty.
        steps: by kind, ways to lead over to the formula.
        checks: sentences that add length and nothing else.
        answers: ways to say the answer; `{x}` is the box.
    """

    code: str
    things: tuple[str, ...]
    minutes: str
    centimetres: str
    questions: dict[str, tuple[str, ...]]
    openers: tuple[str, ...]
    steps: dict[str, tuple[str, ...]]
    checks: tuple[str, ...]
    answers: tuple[str, ...] = field(default=())


ENGLISH = Language(
    "en",
    ("apples", "books", "pencils", "eggs"),
    "minutes",
    "centimetres",
    {
        "add": (
            "{p} has {a} {n} and buys {b} more . How many {n} are there now ?",
            "There are {a} {n} on the table and {b} {n} in the bag . How many {n} are there in total ?",
        ),
        "subtract": (
            "{p} has {a} {n} and gives away {b} of them . How many {n} are left ?",
            "Of {a} {n} on the shelf , {p} takes {b} home . How many {n} stay on the shelf ?",
        ),
        "multiply": ("One box holds {a} {n} . How many {n} are in {b} boxes ?",),
        "hours": ("A film lasts {a} hours and {b} minutes . How many minutes is that ?",),
        "metres": ("A rope is {a} metres and {b} centimetres long . How many centimetres is that ?",),
    },
    ("", "Let us see what we know .", "I will do this step by step ."),
    {
        "add": ("I add the two numbers , {f} .", "We must put both numbers together , so {f} ."),
        "subtract": ("I take the second number away , {f} .", "We must subtract here , so {f} ."),
        "multiply": ("I multiply the two numbers , {f} .", "Each box holds just as many , so {f} ."),
        "hours": ("I turn the hours into minutes first , {f} .", "An hour has sixty minutes , so {f} ."),
        "metres": ("I turn the metres into centimetres first , {f} .", "A metre has a hundred centimetres , so {f} ."),
    },
    (
        "I want to check this once more . The result is still {r} .",
        "Looking at it again , nothing has changed . It should really be {r} .",
    ),
    ("The final answer is {x} {n} .", "So there are {x} {n} in the end ."),
)

FRENCH = Language(
    "fr",
    ("pommes", "livres", "crayons", "tomates"),
    "minutes",
    "centimètres",
    {
        "add": (
            "{p} a {a} {n} et en achète encore {b} . Combien de {n} cela fait-il maintenant ?",
            "Il y a {a} {n} sur la table et {b} {n} dans le sac . Combien de {n} y a-t-il en tout ?",
        ),
        "subtract": (
            "{p} a {a} {n} et en donne {b} . Combien de {n} reste-t-il ?",
            "Des {a} {n} de la caisse , {p} en prend {b} chez soi . Combien de {n} restent dans la caisse ?",
        ),
        "multiply": ("Une boîte contient {a} {n} . Combien de {n} y a-t-il dans {b} boîtes ?",),
        "hours": ("Un film dure {a} heures et {b} minutes . Combien de minutes cela fait-il ?",),
        "metres": ("Une corde mesure {a} mètres et {b} centimètres . Combien de centimètres cela fait-il ?",),
    },
    ("", "Voyons ce que nous savons .", "Je vais le faire pas à pas ."),
    {
        "add": ("J'ajoute les deux nombres , {f} .", "Il faut mettre les deux nombres ensemble , donc {f} ."),
        "subtract": ("J'enlève le deuxième nombre , {f} .", "Il faut soustraire ici , donc {f} ."),
        "multiply": ("Je multiplie les deux nombres , {f} .", "Chaque boîte en contient autant , donc {f} ."),
        "hours": ("Je change d'abord les heures en minutes , {f} .", "Une heure a soixante minutes , donc {f} ."),
        "metres": ("Je change d'abord les mètres en centimètres , {f} .", "Un mètre a cent centimètres , donc {f} ."),
    },
    (
        "Je veux encore vérifier cela . Le résultat est toujours {r} .",
        "En regardant de nouveau , rien n'a changé . Ce devrait bien être {r} .",
    ),
    ("La réponse finale est {x} {n} .", "Il y a donc {x} {n} à la fin ."),
)

GERMAN = Language(
    "de",
    ("Äpfel", "Bücher", "Stifte", "Eier"),
    "Minuten",
    "Zentimeter",
    {
        "add": (
            "{p} hat {a} {n} und kauft noch {b} dazu . Wie viele {n} sind es jetzt ?",
            "Auf dem Tisch liegen {a} {n} und in der Tasche {b} {n} . Wie viele {n} sind es insgesamt ?",
        ),
        "subtract": (
            "{p} hat {a} {n} und verschenkt {b} davon . Wie viele {n} bleiben übrig ?",
            "Von {a} {n} im Regal nimmt {p} {b} mit nach Hause . Wie viele {n} bleiben im Regal ?",
        ),
        "multiply": ("In einer Kiste sind {a} {n} . Wie viele {n} sind in {b} Kisten ?",),
        "hours": ("Ein Film dauert {a} Stunden und {b} Minuten . Wie viele Minuten sind das ?",),
        "metres": ("Ein Seil ist {a} Meter und {b} Zentimeter lang . Wie viele Zentimeter sind das ?",),
    },
    ("", "Sehen wir zuerst , was wir wissen .", "Ich gehe hier Schritt für Schritt vor ."),
    {
        "add": ("Ich zähle die beiden Zahlen zusammen , {f} .", "Wir müssen beide Zahlen addieren , also {f} ."),
        "subtract": ("Ich ziehe die zweite Zahl ab , {f} .", "Wir müssen hier abziehen , also {f} ."),
        "multiply": ("Ich nehme die beiden Zahlen mal , {f} .", "In jeder Kiste ist gleich viel , also {f} ."),
        "hours": ("Ich rechne zuerst die Stunden um , {f} .", "Eine Stunde hat sechzig Minuten , also {f} ."),
        "metres": ("Ich rechne zuerst die Meter um , {f} .", "Ein Meter hat hundert Zentimeter , also {f} ."),
    },
    (
        "Das will ich noch einmal prüfen . Das Ergebnis ist immer noch {r} .",
        "Noch einmal betrachtet hat sich nichts geändert . Es sollte wirklich {r} sein .",
    ),
    ("Die Antwort lautet also {x} {n} .", "Am Ende sind es also {x} {n} ."),
)

SPANISH = Language(
    "es",
    ("libros", "huevos", "lápices", "tomates"),
    "minutos",
    "centímetros",
    {
        "add": (
            "{p} tiene {a} {n} y compra {b} más . ¿ Cuántos {n} tiene ahora ?",
            "Hay {a} {n} en la mesa y {b} {n} en la bolsa . ¿ Cuántos {n} hay en total ?",
        ),
        "subtract": (
            "{p} tiene {a} {n} y regala {b} de ellos . ¿ Cuántos {n} quedan ?",
            "De los {a} {n} del estante , {p} se lleva {b} a casa . ¿ Cuántos {n} quedan en el estante ?",
        ),
        "multiply": ("En una caja hay {a} {n} . ¿ Cuántos {n} hay en {b} cajas ?",),
        "hours": ("Una película dura {a} horas y {b} minutos . ¿ Cuántos minutos son ?",),
        "metres": ("Una cuerda mide {a} metros y {b} centímetros . ¿ Cuántos centímetros son ?",),
    },
    ("", "Veamos primero lo que sabemos .", "Voy a hacerlo paso a paso ."),
    {
        "add": ("Sumo los dos números , {f} .", "Hay que juntar los dos números , así que {f} ."),
        "subtract": ("Quito el segundo número , {f} .", "Aquí hay que restar , así que {f} ."),
        "multiply": ("Multiplico los dos números , {f} .", "En cada caja hay lo mismo , así que {f} ."),
        "hours": ("Primero paso las horas a minutos , {f} .", "Una hora tiene sesenta minutos , así que {f} ."),
        "metres": ("Primero paso los metros a centímetros , {f} .", "Un metro tiene cien centímetros , así que {f} ."),
    },
    (
        "Quiero comprobarlo una vez más . El resultado sigue siendo {r} .",
        "Mirándolo de nuevo , nada ha cambiado . De verdad debería ser {r} .",
    ),
    ("La respuesta final es {x} {n} .", "Por lo tanto quedan al final {x} {n} ."),
)

LANGUAGES = {each.code: each for each in (ENGLISH, FRENCH, GERMAN, SPANISH)}
