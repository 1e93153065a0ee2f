"""The gauge of how the code reads."""

from __future__ import annotations

import pytest

from tools.size import gauge_of, last_release, lines_of_code, main, report, room, rooms

EXPLAINED = '"""Module."""\n\n# why\ndef f(a):\n    """What."""\n    return (\n        a\n    )\n'

TABLE = "NAMES = (\n    'a',\n    'b',\n    'c',\n)\n"


def test_lines_of_code_leave_out_what_explains() -> None:
    assert lines_of_code(EXPLAINED) == 4


def test_imports_stubs_and_tables_are_counted_apart() -> None:
    gauge = gauge_of("npusim/a.py", f"import ast\n{TABLE}total: int = 1\n")
    assert (gauge.lines, gauge.imports, gauge.tables, gauge.stubs) == (1, 1, 5, 0)
    assert gauge.tokens == 5
    assert gauge.annotations == 1
    assert gauge_of("npusim/a.pyi", "from .b import c\n").stubs == 1


def test_empty_names_are_counted_where_they_are_bound() -> None:
    text = "def f(one, size):\n    found = one\n    return [at for at in found]\n"
    assert gauge_of("npusim/a.py", text).empty_names == 3


@pytest.mark.parametrize("first", ["What", "Whether"])
def test_docstrings_that_are_half_a_question(first: str) -> None:
    assert gauge_of("npusim/a.py", f'def f():\n    """{first} it is."""\n').questions == 1
    assert gauge_of("npusim/a.py", f'def f():\n    """Tell {first}."""\n').questions == 0


def test_long_and_dense_functions() -> None:
    body = "".join(f"    a = [1, 2, 3, 4, 5, {line}, 7]\n" for line in range(20))
    gauge = gauge_of("npusim/a.py", f"def f():\n{body}")
    (function,) = gauge.functions
    assert (function.lines, function.tokens) == (21, 20 * 17 + 5)
    assert (function.is_long, function.is_dense) == (False, True)
    longer = "def f():\n" + "    a = 1\n" * 200
    (function,) = gauge_of("npusim/a.py", longer).functions
    assert (function.is_long, function.is_dense) == (True, False)


def test_rooms_are_packages_and_families() -> None:
    assert room("npusim/machine/timing/fast/l2.py") == "npusim/machine/timing"
    assert room("npusim/ahead.py") == "npusim"
    assert room("kernels/matmul/space.py") == "kernels/matmul"
    assert room("tests/machine/isa/test_cube.py") == "tests"


def test_a_class_name_used_in_two_files_counts_once() -> None:
    texts = {f"npusim/{name}.py": "class A:\n    pass\n" for name in "ab"}
    assert rooms(texts)["npusim"].figures()["twice"] == 1


def test_differences_stand_below_what_changed() -> None:
    before = {"npusim/a.py": "x = 1\n", "kernels/b/c.py": "y = 1\n"}
    after = {"npusim/a.py": "x = 1\nz = 2\n", "kernels/b/c.py": "y = 1\n"}
    lines = report(after, before)
    place = next(i for i, line in enumerate(lines) if line.endswith("  npusim"))
    assert lines[place + 1].split() == ["+1", "+3"]
    unchanged = next(i for i, line in enumerate(lines) if line.endswith("  kernels/b"))
    assert lines[unchanged + 1].endswith("  npusim")


def test_a_revision_that_git_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--totals", "--against", "no-such-revision"]) == 2
    assert "no-such-revision" in capsys.readouterr().err


def test_the_last_release_is_a_tag_or_none() -> None:
    release = last_release()
    assert release is None or release.startswith("v")
