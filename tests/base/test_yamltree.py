"""YAML trees: text stays text, and every error says file, line, path and what to do."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from npusim.base import yamltree
from npusim.base.errors import ConfigError
from npusim.base.yamltree import YamlNode, load_tree, suggest
from tests.tables import rows
from tests.texts import text_of

TEXT = text_of("tree.yaml")


def fails(text: str) -> str:
    """Return the message of the error that reading ``text`` raises."""
    with pytest.raises(ConfigError) as caught:
        load_tree(text, "x.yaml")
    return str(caught.value)


def test_scalars_stay_text() -> None:
    root = load_tree(TEXT, "x.yaml").mapping()
    assert [node.text() for node in root["list"].items()] == ["no", "12:30:45", "0x10"]
    assert root["memories"].mapping()["GM->L1.nd2nz"].mapping()["rate"].text() == "1e9"


def test_lines_and_paths() -> None:
    root = load_tree(TEXT, "x.yaml").mapping()
    memories = root["memories"]
    rate = memories.mapping()["GM->L1.nd2nz"].mapping()["rate"]
    b = root["nested"].items()[1].mapping()["b"]
    assert (memories.line, memories.path) == (3, "memories")
    assert (rate.line, rate.path) == (6, "memories.GM->L1.nd2nz.rate")
    assert (b.line, b.path, b.file) == (10, "nested[1].b", "x.yaml")


def test_keys_come_in_file_order() -> None:
    assert list(load_tree(TEXT).mapping()) == ["name", "memories", "list", "nested"]


def test_duplicate_key_names_both_lines() -> None:
    message = fails("a:\n  b: 1\n  c: 2\n  b: 3\n")
    assert message == "x.yaml:4: a.b: duplicate key 'b', first used in line 2; keep one of them"


@rows("tests/data/mistakes/calls.yaml", "bad_text", "text, message")
def test_bad_text(text: str, message: str) -> None:
    assert fails(text).startswith(message)


def test_alias_takes_the_path_of_its_use() -> None:
    root = load_tree("a: &x {k: 1}\nb: *x\n").mapping()
    assert root["b"].mapping()["k"].path == "b.k"
    assert root["b"].mapping()["k"].text() == "1"


def test_alias_within_an_alias_takes_the_path_of_its_use() -> None:
    root = load_tree("a: &x {k: 1}\nb: &y\n  - {m: *x}\nc: {d: *y}\n").mapping()
    (item,) = root["c"].mapping()["d"].items()
    leaf = item.mapping()["m"].mapping()["k"]
    assert (leaf.path, leaf.line, leaf.text()) == ("c.d[0].m.k", 1, "1")


def test_nested_aliases_are_read_without_copies() -> None:
    """Nine aliases of nine aliases of ...: 9 ** 9 values if they were written out."""
    lines = ["a: &a [" + ",".join("x" * 9) + "]"]
    lines += [f"{c}: &{c} [{','.join(['*' + p] * 9)}]" for p, c in pairwise("abcdefghi")]
    node = load_tree("\n".join(lines)).mapping()["i"]
    while not isinstance(node.value, str):
        node = node.items()[-1]
    assert (node.path, node.text()) == ("i" + "[8]" * 9, "x")


def test_a_file_with_too_many_values_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yamltree, "MOST_NODES", 5)
    assert load_tree("a: [1, 2, 3]\n").mapping()["a"].items()[2].text() == "3"
    with pytest.raises(ConfigError, match=r"^x\.yaml:1: a\[3\]: the file has more than 5 values"):
        load_tree("a: [1, 2, 3, 4]\n", "x.yaml")


def test_unknown_key_suggests_the_nearest() -> None:
    root = load_tree("size: 1\nalgin: 2\n", "x.yaml")
    with pytest.raises(ConfigError) as caught:
        root.mapping(required=("size",), optional=("align",))
    assert str(caught.value) == "x.yaml:2: algin: unknown key 'algin'; did you mean 'align'?"


def test_unknown_key_without_a_near_one_lists_all() -> None:
    assert suggest("zzz", ("size", "align")) == "; known: size, align"
    assert suggest("zzz", ()) == "; known: none"


def test_missing_keys_are_all_named() -> None:
    root = load_tree("m:\n  b: 1\n", "x.yaml").mapping()["m"]
    with pytest.raises(ConfigError, match=r"^x\.yaml:1: m: missing keys 'a', 'c'; add it here$"):
        root.mapping(required=("a", "b", "c"))
    with pytest.raises(ConfigError, match=r"^x\.yaml:1: m: missing key 'a'; add it here$"):
        root.mapping(required=("a", "b"))


def test_no_required_key_still_refuses_unknown_ones() -> None:
    root = load_tree("b: 1\n", "x.yaml")
    with pytest.raises(ConfigError, match="unknown key 'b'"):
        root.mapping(required=())
    assert list(root.mapping(optional=("b",))) == ["b"]


@rows("tests/data/mistakes/calls.yaml", "wrong_kind", "key, method, message")
def test_wrong_kind(key: str, method: str, message: str) -> None:
    root = load_tree("map: {a: 1}\nlist: [1]\nnone:\nword: hello\n", "x.yaml").mapping()
    with pytest.raises(ConfigError) as caught:
        getattr(root[key], method)()
    assert str(caught.value) == f"x.yaml:{root[key].line}: {key}: {message}"


def test_reads_a_file_and_names_it(tmp_path: Path) -> None:
    path = tmp_path / "d.yaml"
    path.write_text("a: 1\n", encoding="utf-8")
    assert load_tree(path) == YamlNode({"a": YamlNode("1", str(path), 1, "a")}, str(path), 1, "")
    assert load_tree(path, "d").mapping()["a"].file == "d"


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: cannot be read: No such file"):
        load_tree(tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"a: \xff\n")
    with pytest.raises(ConfigError, match=r"latin\.yaml: cannot be read as UTF-8 text"):
        load_tree(tmp_path / "latin.yaml")
    with (tmp_path / "large.yaml").open("wb") as file:
        file.truncate(300 << 20)
    with pytest.raises(ConfigError, match=r"has 314,572,800 bytes, at most 16,777,216 are read"):
        load_tree(tmp_path / "large.yaml")
    with pytest.raises(ConfigError, match=r"x:1: not valid YAML: .*surrogates not allowed"):
        load_tree("a: \ud800", "x")
