# SPDX-License-Identifier: Apache-2.0
"""The checks of the house find what they are for."""
import pathlib
import shutil
import subprocess
import sys

import pytest

TOP = pathlib.Path(__file__).resolve().parents[2]
CHECK = TOP / "tools/check_layers.py"


@pytest.fixture
def source(tmp_path):
    shutil.copytree(TOP / "src", tmp_path / "src")
    return tmp_path / "src"


def check(source):
    done = subprocess.run([sys.executable, CHECK, source], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout


def append(path, line):
    with open(path, "a") as file:
        file.write(line + "\n")


def test_the_house_is_in_order(source):
    assert check(source) == (0, "layers: fine\n")


def test_a_folder_with_too_many_files_is_named(source):
    for n in range(26):
        (source / f"home/links/more_{n}.h").touch()
    status, text = check(source)
    assert status == 1 and "home/links: " in text and "at most 25 in a folder" in text


def test_an_include_of_a_folder_above_is_named(source):
    append(source / "home/root/root_tree.cc", '#include "home/runs/runs.h"')
    status, text = check(source)
    assert status == 1 and "root_tree.cc:" in text and "home/root must not include home/runs, which is above it" in text


def test_an_include_of_a_module_above_is_named(source):
    append(source / "store/store.cc", '#include "vfs/retry.h"')
    assert check(source)[0] == 1


def test_a_product_that_includes_a_test_helper_is_named(source):
    append(source / "home/home.cc", '#include "home/testing/test_directory.h"')
    status, text = check(source)
    assert status == 1 and "only tests include home/testing" in text


def test_a_folder_that_nobody_put_in_order_is_named(source):
    (source / "home/attic").mkdir()
    (source / "home/attic/old.h").touch()
    status, text = check(source)
    assert status == 1 and "folder attic of home is not in tools/check_layers.py" in text
