# SPDX-License-Identifier: Apache-2.0
"""Each row of the list of attacks has the tests that docs/security.md names."""
import pathlib
import re

TOP = pathlib.Path(__file__).resolve().parents[2]
ROWS = {*(f"A{n}" for n in range(1, 7)), *(f"P{n}" for n in range(1, 5)), *(f"N{n}" for n in range(1, 5)), "H1", "H2",
        *map(str, (1, 2, 3, 4, 5, 7, 9, 10, 11, 12, 13, 14, 15, 17, 18, 21, 22, 24, 25, 26, 27, 29, 30))}
FILES = {p.stem: p.read_text() for p in [*TOP.glob("tests/security/test_*.py"), *TOP.glob("tests/e2e/test_*.py")]}
PROGRAMS = {p.stem: p.read_text() for p in [*TOP.glob("src/**/*_test.cc"), *TOP.glob("tests/fuzz/*_fuzz.cc")]}


def table():
    text = (TOP / "docs/security.md").read_text()
    lines = text[text.index("## What is tried"):text.index("## Reporting")].splitlines()
    for line in lines:
        cells = [c.strip() for c in line.strip("|").split("|")]
        if len(cells) == 3 and re.match(r"[APNH]?\d", cells[0]):
            for row in cells[0].split(", "):
                yield row, cells[2]


def test_every_row_is_in_the_table():
    assert {row for row, _ in table()} == ROWS


def test_what_the_table_names_is_there():
    for row, tests in table():
        # `test_file` test_12: tests of that file whose names begin so.
        for file, number in re.findall(r"`(test_\w+)`(?: test_(\d+))?", tests):
            assert file in FILES, (row, file)
            assert not number or re.search(rf"^def test_{number}_|^def test_\d+_to_{number}_", FILES[file], re.M), (row, file, number)
        for program in re.findall(r"\b([a-z_]+_(?:test|fuzz))\b", tests):
            assert program in PROGRAMS, (row, program)
        for name in re.findall(r"\b([A-Z][a-z]+[A-Z]\w+)", tests):
            assert any(name in text for text in PROGRAMS.values()), (row, name)
        assert re.search(r"`test_|_test|_fuzz|rows? \d|as A6", tests), row
