"""What problems and thoughts sound like in four languages. All sentences are ours.

Words are parted by blanks, and `{...}` are filled in by `tasks`: a, b the numbers
of the problem, s a step in between, t a second one, r the result, n the thing counted, p a name.
"""

from __future__ import annotations

from dataclasses import dataclass, field

NAMES = ("Anna", "Paul", "Clara", "Max", "Nina", "Leo")
KINDS = ("add", "subtract", "multiply", "hours", "weeks")


@dataclass(frozen=True)
class Language:
    """One language.

    Attributes:
        code: ISO 639-1.
        things: what is counted.
        minutes, days: the words for what the two unit problems ask for.
        questions: by kind, ways to ask.
        openers: ways to begin a thought; one may be empty.
        steps: by kind, ways to reckon.
        checks: sentences that add length and nothing else.
        answers: ways to say the answer; `{x}` is the box.
    """

    code: str
    things: tuple[str, ...]
    minutes: str
    days: str
    questions: dict[str, tuple[str, ...]]
    openers: tuple[str, ...]
    steps: dict[str, tuple[str, ...]]
    checks: tuple[str, ...]
    answers: tuple[str, ...] = field(default=())


ENGLISH = Language(
    "en",
    ("apples", "books", "pencils", "eggs"),
    "minutes",
    "days",
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
        "weeks": ("A journey takes {a} weeks and {b} days . How many days is that ?",),
    },
    ("", "Let us see what we know .", "I will do this step by step ."),
    {
        "add": (
            "I add {a} and {b} . The ones give {s} together , and with the {t} that makes {r} .",
            "We must add both numbers . The ones are {s} , the tens are {t} , so there are {r} .",
        ),
        "subtract": (
            "I take {b} away from {a} , and that leaves {r} .",
            "We must subtract . From {a} we go back {b} steps and get to {r} .",
        ),
        "multiply": (
            "I multiply {a} by {b} . The tens give {s} and the ones give {t} , so together we have {r} .",
            "Each box holds the same . The tens give {s} , the ones {t} . That makes {r} .",
        ),
        "hours": ("I turn the hours into minutes , which gives {s} . With {b} more that makes {r} .",),
        "weeks": ("I turn the weeks into days , which gives {s} . With {b} more that makes {r} .",),
    },
    (
        "I want to check this once more . The numbers are {a} and {b} , and the result is still {r} .",
        "Looking at it again , nothing has changed . It should really be {r} .",
    ),
    ("The final answer is {x} {n} .", "So there are {x} {n} in the end ."),
)

FRENCH = Language(
    "fr",
    ("pommes", "livres", "crayons", "tomates"),
    "minutes",
    "jours",
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
        "weeks": ("Un voyage dure {a} semaines et {b} jours . Combien de jours cela fait-il ?",),
    },
    ("", "Voyons ce que nous savons .", "Je vais le faire pas à pas ."),
    {
        "add": (
            "J'ajoute {a} et {b} . Les unités donnent {s} ensemble , et avec les {t} cela fait {r} .",
            "Il faut additionner les deux nombres . Les unités font {s} , les dizaines {t} , donc il y en a {r} .",
        ),
        "subtract": (
            "J'enlève {b} de {a} , et cela laisse {r} .",
            "Il faut soustraire . Depuis {a} on recule de {b} pas et on arrive à {r} .",
        ),
        "multiply": (
            "Je multiplie {a} par {b} . Les dizaines donnent {s} et les unités donnent {t} , donc nous avons {r} .",
            "Chaque boîte contient autant . Les dizaines donnent {s} , les unités {t} . Cela fait {r} .",
        ),
        "hours": ("Je change les heures en minutes , ce qui donne {s} . Avec {b} de plus cela fait {r} .",),
        "weeks": ("Je change les semaines en jours , ce qui donne {s} . Avec {b} de plus cela fait {r} .",),
    },
    (
        "Je veux encore vérifier cela . Les nombres sont {a} et {b} , et le résultat est toujours {r} .",
        "En regardant de nouveau , rien n'a changé . Ce devrait bien être {r} .",
    ),
    ("La réponse finale est {x} {n} .", "Il y a donc {x} {n} à la fin ."),
)

GERMAN = Language(
    "de",
    ("Äpfel", "Bücher", "Stifte", "Eier"),
    "Minuten",
    "Tage",
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
        "weeks": ("Eine Reise dauert {a} Wochen und {b} Tage . Wie viele Tage sind das ?",),
    },
    ("", "Sehen wir zuerst , was wir wissen .", "Ich gehe hier Schritt für Schritt vor ."),
    {
        "add": (
            "Ich zähle {a} und {b} zusammen . Die Einer ergeben {s} , und mit den {t} macht das {r} .",
            "Wir müssen beide Zahlen addieren . Die Einer sind {s} , die Zehner sind {t} , also sind es {r} .",
        ),
        "subtract": (
            "Ich ziehe {b} von {a} ab , und es bleiben {r} .",
            "Wir müssen abziehen . Von {a} gehen wir {b} Schritte zurück und kommen zu {r} .",
        ),
        "multiply": (
            "Ich nehme {a} mal {b} . Die Zehner ergeben {s} und die Einer {t} , also haben wir zusammen {r} .",
            "In jeder Kiste ist gleich viel . Die Zehner ergeben {s} , die Einer {t} . Das macht {r} .",
        ),
        "hours": ("Ich rechne die Stunden in Minuten um , das ergibt {s} . Mit noch {b} dazu macht das {r} .",),
        "weeks": ("Ich rechne die Wochen in Tage um , das ergibt {s} . Mit noch {b} dazu macht das {r} .",),
    },
    (
        "Das will ich noch einmal prüfen . Die Zahlen sind {a} und {b} , und das Ergebnis ist immer noch {r} .",
        "Noch einmal betrachtet hat sich nichts geändert . Es sollte wirklich {r} sein .",
    ),
    ("Die Antwort lautet also {x} {n} .", "Am Ende sind es also {x} {n} ."),
)

SPANISH = Language(
    "es",
    ("libros", "huevos", "lápices", "tomates"),
    "minutos",
    "días",
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
        "weeks": ("Un viaje dura {a} semanas y {b} días . ¿ Cuántos días son ?",),
    },
    ("", "Veamos primero lo que sabemos .", "Voy a hacerlo paso a paso ."),
    {
        "add": (
            "Sumo {a} y {b} . Las unidades dan {s} juntas , y con los {t} eso hace {r} .",
            "Hay que sumar los dos números . Las unidades son {s} , las decenas son {t} , así que hay {r} .",
        ),
        "subtract": (
            "Quito {b} de {a} , y eso deja {r} .",
            "Hay que restar . Desde {a} volvemos {b} pasos y llegamos a {r} .",
        ),
        "multiply": (
            "Multiplico {a} por {b} . Las decenas dan {s} y las unidades dan {t} , así que juntos tenemos {r} .",
            "En cada caja hay lo mismo . Las decenas dan {s} , las unidades {t} . Eso hace {r} .",
        ),
        "hours": ("Paso las horas a minutos , lo que da {s} . Con {b} más eso hace {r} .",),
        "weeks": ("Paso las semanas a días , lo que da {s} . Con {b} más eso hace {r} .",),
    },
    (
        "Quiero comprobarlo una vez más . Los números son {a} y {b} , y el resultado sigue siendo {r} .",
        "Mirándolo de nuevo , nada ha cambiado . De verdad debería ser {r} .",
    ),
    ("La respuesta final es {x} {n} .", "Por lo tanto quedan al final {x} {n} ."),
)

LANGUAGES = {each.code: each for each in (ENGLISH, FRENCH, GERMAN, SPANISH)}
