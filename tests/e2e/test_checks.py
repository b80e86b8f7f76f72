# SPDX-License-Identifier: Apache-2.0
"""The checks of the house find what they are for."""
import pathlib
import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.xdist_group("test_checks.py")   # not several compilers at once

TOP = pathlib.Path(__file__).resolve().parents[2]
CHECK = TOP / "tools/check_layers.py"
sys.path.insert(0, str(TOP / "tools"))
import code_groups  # noqa: E402


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


# --- tools/check_code ---

GUARDED = """
#include "base/thread/mutex.h"
namespace vrun {
class Counter {
 public:
  void Add() {
    %s
    ++count_;
  }

 private:
  Mutex mutex_;
  int count_ VRUN_GUARDED_BY(mutex_) = 0;
};
void Use(Counter& counter) { counter.Add(); }
}  // namespace vrun
"""


def test_names_of_which_a_unit_has_one():
    text = "namespace {\nconstexpr int kWhole = 1;\nenum Reason : size_t {\n  kBad,  // kNo\n  kMore = 3,\n};\nenum class Kind { kOne };\nint Text(int n) {\n"
    assert code_groups.names(text) == {"kWhole", "Reason", "kBad", "kMore", "Kind", "Text"}


def check_code(path, text, *options):
    path.write_text(text)
    done = subprocess.run([sys.executable, TOP / "tools/check_code", *options, path], capture_output=True, text=True, timeout=300)
    return done.returncode, done.stdout


def test_code_that_locks_is_fine(tmp_path):
    status, text = check_code(tmp_path / "counter.cc", GUARDED % "MutexLock lock(mutex_);")
    assert status == 0, text


def test_an_access_without_the_lock_is_named(tmp_path):
    status, text = check_code(tmp_path / "counter.cc", GUARDED % "")
    assert status == 1 and "counter.cc:8:" in text and "'count_' requires holding mutex 'mutex_'" in text


def test_a_use_after_a_move_is_named(tmp_path):
    status, text = check_code(tmp_path / "moved.cc", """
#include <string>
#include <utility>
#include <vector>
size_t Twice(std::string name, std::vector<std::string>* names) {
  names->push_back(std::move(name));
  return name.size();
}
""", "--tidy")
    assert status == 1 and "moved.cc:7:" in text and "bugprone-use-after-move" in text
