#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which files of code can be compiled as one: those of which no two define the same name outside of functions and classes.

code_groups.py MOST FILE...: one line a file, the number of its group. Used by CMake for the preset `demo`, and by check_code."""
import pathlib
import re
import sys

# A name that a .cc defines outside of functions and classes.
NAME = re.compile(r"^(?![ /]|namespace|using namespace|extern|return)(?:template.*> )?(?:\[\[\w+\]\] )?"
                  r"(?:static |inline |constexpr |const |thread_local )*"
                  r"(?:(?:struct|class|enum class|enum|using) (\w+)|[\w:<>,*& ]+[ *&](\w+)(?:\(|\[|\{| =|;))", re.M)

# The values of an enum that is no class are such names too.
ENUM = re.compile(r"^enum (?!class)[^{;]*\{([^}]*)\}", re.M)
VALUE = re.compile(r"(?:^|,)\s*(\w+)")


def names(text):
    values = {value for body in ENUM.findall(text) for value in VALUE.findall(re.sub(r"//.*", "", body))}
    return values | {a or b for a, b in NAME.findall(text)}


def groups(items, most, names_of, kind_of=lambda item: 0):
    """Lists of at most `most` items of one kind, in their order."""
    made = []   # (items, their names)
    for item in items:
        its = names_of(item)
        for members, taken in made:
            if len(members) < most and kind_of(members[0]) == kind_of(item) and not its & taken:
                members.append(item)
                taken |= its
                break
        else:
            made.append(([item], set(its)))
    return [members for members, _ in made]


def main():
    most, files = int(sys.argv[1]), sys.argv[2:]
    number = {}
    for i, members in enumerate(groups(files, most, lambda path: names(pathlib.Path(path).read_text(errors="replace")))):
        number.update((path, i) for path in members)
    for path in files:
        print(number[path])


if __name__ == "__main__":
    main()
