"""Languages by declaration: the house's, a user's own, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlready.errors import UserError
from rlready.rewards.code.languages import KEYS, REQUIRED, Language, _starts, language, languages

GOOD = "prompt: Use it.\nfilename: snippet.x\nexecute: lua5.4 snippet.x\n"


def written(tmp_path: Path, text: str, name: str = "mine.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_the_houses_languages() -> None:
    assert set(languages()) == {"python", "lua", "ocaml", "fortran", "r", "julia"}
    for name, each in languages().items():
        assert each.name == name and each.prompt and each.programs and each.suffix
        assert "\n" not in each.prompt.split(".")[0], "the first line stands alone where tips are dropped"
        assert each.filename in f"{each.compile} {each.execute}"
        assert each.runs_here == (not each.missing) == (not each.remedy)
    assert languages()["fortran"].programs == ("gfortran",), "what is compiled is not looked for"
    assert language("LUA") is languages()["lua"] and language(languages()["lua"]) is languages()["lua"]


def test_a_language_of_ones_own(tmp_path: Path) -> None:
    text = GOOD + "compile: 'gcc -o a b.c && ./prepare'\ninstall: apt-get install gcc\n"
    mine = language(str(written(tmp_path, text + "container: {base-image: 'debian:12', type: debian}\n")))
    assert (mine.name, mine.suffix, mine.programs) == ("mine", ".x", ("gcc", "lua5.4"))
    assert mine.container is not None and mine.container.base_image == "debian:12"
    raw = "install:\n  container-instructions: |\n    RUN opam install base\n    ENV A=b\n"
    built = Language.load(written(tmp_path, GOOD + raw))
    assert built.container is not None and built.container.instructions == "RUN opam install base\nENV A=b"


def test_what_is_missing_is_said_with_the_remedy(tmp_path: Path) -> None:
    text = GOOD.replace("lua5.4", "no-such-interpreter") + "install: apt-get install -y it\n"
    mine = language(written(tmp_path, text))
    assert not mine.runs_here and mine.missing == ("no-such-interpreter",)
    with pytest.raises(UserError, match=r"mine cannot run here.*no-such-interpreter.*apt-get install -y it"):
        mine.require()
    assert (
        "debian:12"
        in language(written(tmp_path, GOOD.replace("lua5.4", "nope") + "container: {base-image: 'debian:12'}\n")).remedy
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (GOOD + "excute: lua\n", 'Unknown key "excute". Did you mean execute?'),
        (GOOD + "timeout: 3\n", 'Unknown key "timeout"'),
        (GOOD + "1: 3\n", 'Unknown key "1"'),
        ("prompt: a\nfilename: b\n", 'the key "execute" is missing'),
        (GOOD.replace("Use it.", "3"), '"prompt" must be a text that is not empty, not 3'),
        (GOOD.replace("Use it.", "''"), '"prompt" must be a text that is not empty'),
        (GOOD + "compile:\n", '"compile" must be a text that is not empty, not None'),
        (GOOD.replace("snippet.x\nexecute", "../snippet.x\nexecute"), '"filename" must be a plain file name'),
        (GOOD.replace("filename: snippet.x", "filename: -x"), '"filename" must be a plain file name'),
        (GOOD.replace("execute: lua5.4", "execute: 'lua5.4"), "line 4, column 1"),
        (GOOD + 'compile: "gcc ''\'x"\n', '"compile" is no shell line'),
        (GOOD + "install: [a]\n", '"install" must be a shell line, or a mapping'),
        (GOOD + "install: {instructions: a}\n", '"install": Unknown key "instructions"'),
        (GOOD + "container: debian\n", '"container" must be a mapping'),
        (GOOD + "container: {base_image: a}\n", '"container": Unknown key "base_image". Did you mean base-image?'),
        (GOOD + "container: {base-image: a, type: alpine}\n", "only debian is known"),
        ("- a\n", "holds no keys"),
        ("", "holds no keys"),
        ("a: [\n", "line 2, column 1"),
        ("a: !!python/object/apply:os.system ['true']\n", "could not determine a constructor"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_refused_with_file_and_key(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UserError) as caught:
        language(path)
    assert said in str(caught.value) and str(path) in str(caught.value)


def test_names_and_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r'Unknown language "luaa"[.] Did you mean lua'):
        language("luaa")
    with pytest.raises(UserError, match="No such file"):
        language(tmp_path / "none.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="UTF-8"):
        language(tmp_path / "bytes.yaml")


@pytest.mark.parametrize(
    ("line", "starts"),
    [
        ("lua5.4 snippet.lua", ["lua5.4"]),
        ("A=1 B=2 python3 a.py | sort > out; cat x && ./run", ["python3", "sort", "cat"]),
        ("exec node a.js < b", ["node"]),
        ("cd /tmp && echo lua", []),
        ("(perl a.pl)", ["perl"]),
        ("/usr/bin/perl a.pl", ["/usr/bin/perl"]),
        ("", []),
    ],
)
def test_the_programs_of_a_line(line: str, starts: list[str]) -> None:
    assert _starts(line) == starts


@given(
    st.dictionaries(
        st.sampled_from([*KEYS, "other"]), st.one_of(st.text(), st.integers(), st.none(), st.lists(st.text()))
    )
)
@settings(max_examples=200, deadline=None)
def test_any_mapping_is_a_language_or_a_sentence(record: dict[str, object]) -> None:
    try:
        made = Language.of(record, "x.yaml", "x")
    except UserError as error:
        assert str(error).startswith("x.yaml") and str(error).endswith((".", "?"))
    else:
        assert set(REQUIRED) <= record.keys() <= set(KEYS) and made.execute.strip()
