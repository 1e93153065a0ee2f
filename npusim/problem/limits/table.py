"""The documented limits of operators, per product: tables of ``configs/constraints``, applied.

``check`` holds a call, described by a flat mapping of facts, against the table of the device's
product, in the order of the real call's checks (``STAGES``). Which facts an operator has, its card
says (``npusim.ops.card``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from msgspec import Struct

from npusim.base.errors import ArgumentError, RuleError
from npusim.base.resources import configs
from npusim.base.yamltree import YamlNode, load_tree, suggest
from npusim.machine.device.spec import Device
from npusim.problem.limits.checks import CHECKS
from npusim.problem.limits.facts import Facts, OperatorFacts

#: The order of checks. After "empty" a call with an empty input needs no further check.
STAGES = (
    "pointers",
    "dtype",
    "format",
    "values",
    "cube_math_type",
    "empty",
    "dims",
    "channels",
    "ranges",
    "spatial",
    "kernel",
)

#: Whose limits hold: the product's or, failing that, a relative's; the product's alone; none.
RULES = ("documented", "strict", "hardware")


class Undocumented(Struct, frozen=True, kw_only=True):
    """An operator no page of whose limits is at hand: its name in the library, and a sister.

    A ``sister`` is an operator of the same library and the same layers whose limits are known, with
    its ``facts``; a call that these would not permit says so in a note. "" where there is none.
    """

    title: str
    sister: str = ""
    facts: OperatorFacts | None = None

    def no_page(self, operator: str) -> str:
        """That no page of an operator's limits is at hand, as the beginning of a sentence."""
        return f"no page of the limits of {operator} ({self.title}) is at hand"


#: Arguments of a sister's call that its forward pass does not have.
_OF_GRADIENTS = ("grad_input", "grad_weight", "grad_bias", "bias_sizes", "output_mask")

#: Products whose tables stand in, nearest first, for a device that names no product.
DEFAULT_RELATIVES = ("a2", "910", "mt7004")

_ABSENT = object()  # a fact the caller did not state


class LimitRule(Struct, frozen=True, kw_only=True):
    """One row: what ``parameter`` must be, ``when`` other facts have certain values.

    ``fact`` is the fact looked at, mostly the parameter itself; ``positions`` of a tuple, or all.
    ``status`` is what the real call returns otherwise, None where it fails without a code.
    ``source`` is the short name of the source in the file of limits, ``basis`` the source in words.
    ``always`` rows say what the operation is and hold under ``rules="hardware"`` too. ``way_out``
    says what to do, "" where that is to choose a permitted value.
    """

    parameter: str
    fact: str
    stage: str
    permitted: str
    way_out: str
    status: int | None
    source: str
    basis: str
    when: Mapping[str, tuple[Any, ...]]
    positions: tuple[int, ...]
    required: bool
    least: int | None
    most: int | None
    one_of: tuple[Any, ...]
    length: tuple[Any, ...]
    check: str
    always: bool

    @property
    def condition(self) -> str:
        """``when`` in words; empty where the row always applies."""
        return ", ".join(f"{k} = {' or '.join(map(_text, v))}" for k, v in self.when.items())

    def broken(self, facts: Facts) -> str | None:
        """Return what is wrong with a call, or None."""
        value = facts.get(self.fact, _ABSENT)
        if value is _ABSENT or not _applies(self.when, facts):
            return None
        if value is None:
            return f"{self.fact} is null" if self.required else None
        if self.check:
            wrong = CHECKS[self.check](facts, self.fact)
            return f"{self.fact} is {_text(value)}: {wrong}" if wrong else None
        entries = value if isinstance(value, (tuple, list)) else (value,)
        if self.length:
            lengths = [facts[n] if isinstance(n, str) else n for n in self.length]
            good = isinstance(value, (tuple, list)) and len(value) in lengths
        else:
            good = self._in_range(entries)
        ranged = self.least is not None and not self.length and not self.one_of
        if good:
            return None
        no_integer = ranged and any(isinstance(entry, float) for entry in entries)
        return f"{self.fact} is {_text(value)}{', no integer' if no_integer else ''}"

    def _in_range(self, entries: Sequence[Any]) -> bool:
        if self.positions:
            entries = [entries[i] for i in self.positions]
        if self.one_of:
            return all(entry in self.one_of for entry in entries)
        if self.least is None and self.most is None:
            return True
        return all(
            _is_integer(entry)
            and (self.least is None or int(entry) >= self.least)
            and (self.most is None or int(entry) <= self.most)
            for entry in entries
        )


class LimitTable(Struct, frozen=True, kw_only=True):
    """The rules of one operator on one product, in the order they are applied.

    ``product`` is the one whose documentation they come from; ``unlisted`` says why where it is
    not the device's own. ``remarks`` are notes for calls with certain facts.
    """

    operator: str
    title: str
    product: str
    product_title: str
    unlisted: str
    rules: tuple[LimitRule, ...]
    remarks: tuple[tuple[Mapping[str, tuple[Any, ...]], str], ...]

    @property
    def note(self) -> str:
        """Whose limits are applied, unless they are those of the device's own product."""
        applied = f"{self.unlisted}; the limits of {self.product_title} were applied"
        return applied if self.unlisted else ""


def check(
    operator: str,
    described_by: OperatorFacts,
    facts: Facts,
    device: Device,
    rules: str = "documented",
) -> list[str]:
    """Hold a call against its product's limits; return notes, raise ``RuleError`` at the first.

    ``facts`` are of the kinds that the operator is ``described_by``. ``rules="hardware"`` applies
    only the rows that say what the operation is; ``rules="strict"`` refuses an operator that the
    documentation of the device's own product does not list. An unknown or missing fact is an
    ``ArgumentError``.
    """
    table = load_rules(device.product, operator)
    if rules == "strict" and table.unlisted:
        raise RuleError(
            f"{operator} on {device.name}: {table.unlisted}; rules='strict' takes no other "
            f"product's limits, rules='documented' those of {table.product_title}",
            parameter="device",
            status=None,
        )
    _check_facts(operator, described_by, facts)
    all_facts = {**described_by.derive(facts), **facts, "device.groups": device.groups}
    documented = rules != "hardware"
    broken = _first_broken(table.rules if documented else _always(table), all_facts)
    if broken is not None:
        rule, wrong = broken
        text = f"{_message(table, rule, wrong)}; {_way_out(rule, device)}"
        raise RuleError(text, parameter=rule.parameter, status=rule.status)
    if not documented:
        return []
    remarks = [text for when, text in table.remarks if _applies(when, all_facts)]
    if table.note:
        return [f"{device.name}: {table.note}", *remarks]
    return remarks


def _always(table: LimitTable) -> tuple[LimitRule, ...]:
    """The rows that say what the operation is."""
    return tuple(rule for rule in table.rules if rule.always)


def _first_broken(rules: Iterable[LimitRule], facts: Facts) -> tuple[LimitRule, str] | None:
    """The first row that a call breaks, and what is wrong with the call; None where none is."""
    skip = STAGES.index("empty")
    for rule in rules:
        if facts.get("empty") and STAGES.index(rule.stage) > skip:
            break
        wrong = rule.broken(facts)
        if wrong:
            return rule, wrong
    return None


def check_undocumented(
    operator: str,
    undocumented: Undocumented,
    facts: Facts,
    device: Device,
    rules: str = "documented",
) -> list[str]:
    """Return notes on a call whose operator has no page of limits.

    ``facts`` are those of the sister's call on the same layer. A call that the sister's limits on
    the device's product would not permit is noted with the limit, and simulated. ``rules="strict"``
    refuses the operator (``RuleError``), ``rules="hardware"`` has no notes.
    """
    no_page = undocumented.no_page(operator)
    if rules == "strict":
        raise RuleError(
            f"{operator} on {device.name}: {no_page}; rules='strict' takes no other "
            "operator's limits, rules='documented' notes what those of a sister would not permit",
            parameter="device",
            status=None,
        )
    if rules == "hardware":
        return []
    sister = undocumented.sister
    if undocumented.facts is None:
        return [f"{no_page}: what the kernels can compute is permitted"]
    _check_facts(sister, undocumented.facts, facts)
    derived = undocumented.facts.derive(facts)
    table = load_rules(device.product, sister)
    broken = _first_broken(
        sister_rules(table), {**derived, **facts, "device.groups": device.groups}
    )
    if broken is None:
        return [
            f"{no_page}: what the kernels can compute is permitted; the limits of "
            f"{table.title} on {table.product_title} permit such a layer"
        ]
    return [
        f"{no_page}: the call is simulated, but the limits of {table.title} do not "
        f"permit such a layer: {_message(table, *broken)}"
    ]


def sister_rules(table: LimitTable) -> list[LimitRule]:
    """The rows of a sister's table that are about the layer, and not about its gradients."""
    return [
        rule
        for rule in table.rules
        if rule.stage != "pointers"
        and rule.parameter.partition(".")[0] not in _OF_GRADIENTS
        and not rule.fact.endswith(".format")  # a call here states none
    ]


def documented_products(operator: str) -> list[str]:
    """Return the keys of the products whose documentation lists ``operator``, sorted."""
    folder = configs() / "constraints"
    names = sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if "." in f.name)
    names.remove("common")
    return [name for name in names if _operator(_file(name), operator) is not None]


def documented_operators() -> list[str]:
    """Return the names of the operators that have a table, sorted."""
    return sorted(_file("common").mapping()["operators"].mapping())


@lru_cache(maxsize=128)
def load_rules(product: str, operator: str) -> LimitTable:
    """Return the table that governs ``operator`` on ``product`` (a key; "" for none).

    It is the product's own, or that of the nearest relative whose documentation lists it.
    """
    common = _file("common")
    operators = common.mapping()["operators"].mapping()
    if operator not in operators:
        raise ArgumentError(
            f"operator {operator!r} has no documented limits{suggest(operator, operators)}"
        )
    source, unlisted = _governing(product, operator)
    file = _file(source)
    entry, shared = _operator(file, operator), operators[operator]
    assert entry is not None  # _governing chose it for that
    rules = [*_rules(entry, file, product), *_rules(shared, common, product)]
    if "like" in shared.mapping():  # rows of a sister, but for parameters that it has alone
        sister = operators[shared.mapping()["like"].text()]
        without = _values(shared.mapping().get("without"))
        assumed = _rules(sister, common, product, "SISTER")
        rules += [rule for rule in assumed if rule.parameter not in without]
    rules.sort(
        key=lambda rule: STAGES.index(rule.stage)
    )  # stable: the product first, in file order
    return LimitTable(
        operator=operator,
        title=shared.mapping()["title"].text(),
        product=source,
        product_title=file.mapping()["title"].text(),
        unlisted=unlisted,
        rules=tuple(rules),
        remarks=tuple(_remarks(entry)),
    )


def _governing(product: str, operator: str) -> tuple[str, str]:
    """Return (key of the product whose table governs, why unless it is the product itself)."""
    if product:
        file = _file(product)
        if _operator(file, operator) is not None:
            return product, ""
        who = f"the documentation of {file.mapping()['title'].text()} does not list {operator}"
        relatives = [node.text() for node in file.mapping()["relatives"].items()]
    else:
        who, relatives = "the device names no product", list(DEFAULT_RELATIVES)
    for relative in relatives:
        if _operator(_file(relative), operator) is not None:
            return relative, who
    raise ArgumentError(f"{who}, nor does that of a relative; use rules='hardware'")


@lru_cache(maxsize=16)
def _file(product: str) -> YamlNode:
    """Return one file of ``configs/constraints``."""
    folder = configs() / "constraints"
    names = sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if "." in f.name)
    if product not in names:
        names.remove("common")
        raise ArgumentError(
            f"no table of limits for product {product!r}{suggest(product, names)}; correct "
            "'product' in the device file, or leave it out"
        )
    return load_tree(folder / f"{product}.yaml", f"constraints/{product}.yaml")


def _operator(file: YamlNode, operator: str) -> YamlNode | None:
    """Return an operator's entry in a product's file."""
    operators = file.mapping().get("operators")
    return operators.mapping().get(operator) if operators else None


_ROW = ("parameter", "stage", "status", "basis")
_TESTS = ("required", "min", "max", "one_of", "length", "check")
_EXTRA = ("fact", "when", "positions", "permitted", "way_out", "always", "not_for")


def _rules(entry: YamlNode, file: YamlNode, product: str, source: str = "") -> Iterator[LimitRule]:
    """Yield the rows of an operator, one per parameter and fact they name.

    ``source`` is that of all rows where they are another operator's.
    """
    sources = file.mapping()["sources"].mapping() if entry.mapping()["rules"].items() else {}
    for row in entry.mapping()["rules"].items():
        keys = row.mapping(_ROW, (*_TESTS, *_EXTRA))
        if not any(test in keys for test in _TESTS):
            raise row.fail(f"a row needs one of {', '.join(_TESTS)}")
        basis = source or keys["basis"].word("source", sources)
        keys["stage"].word("stage", STAGES)
        if product in map(str, _values(keys.get("not_for"))):
            continue
        for parameter in _values(keys["parameter"]):
            for fact in _values(keys.get("fact")) or (parameter,):
                yield _rule(keys, parameter, str(fact), basis, sources[basis].text())


def _rule(
    keys: Mapping[str, YamlNode], parameter: Any, fact: str, source: str, basis: str
) -> LimitRule:
    """Return one row as a ``LimitRule``."""
    least = _scalar(keys["min"].text()) if "min" in keys else None
    most = _scalar(keys["max"].text()) if "max" in keys else None
    one_of = _values(keys.get("one_of"))
    length = _values(keys.get("length"))
    permitted = keys["permitted"].text() if "permitted" in keys else ""
    return LimitRule(
        parameter=str(parameter),
        fact=fact,
        stage=keys["stage"].text(),
        permitted=permitted or _permitted(least, most, one_of, length),
        way_out=keys["way_out"].text() if "way_out" in keys else "",
        status=_scalar(keys["status"].text()),
        source=source,
        basis=basis,
        when=_when(keys.get("when")),
        positions=_values(keys.get("positions")),
        required="required" in keys,
        least=least,
        most=most,
        one_of=one_of,
        length=length,
        check=keys["check"].word("check", CHECKS) if "check" in keys else "",
        always="always" in keys,
    )


def _remarks(entry: YamlNode) -> Iterator[tuple[Mapping[str, tuple[Any, ...]], str]]:
    """Yield the notes of an operator with their conditions."""
    notes = entry.mapping(("rules",), ("notes",)).get("notes")
    for row in notes.items() if notes else ():
        keys = row.mapping(("when", "note"))
        yield _when(keys["when"]), keys["note"].text()


def _permitted(least: Any, most: Any, one_of: tuple[Any, ...], length: tuple[Any, ...]) -> str:
    """The values that a row permits, in words, where the row itself does not say."""
    if length:
        return f"length {' or '.join(map(_text, length))}"
    if one_of:
        return " or ".join(map(_text, one_of))
    if most is not None:
        return f"{least} to {most}" if least is not None else f"up to {most}"
    return f"at least {least}" if least is not None else "a value, not null"


def _check_facts(operator: str, described_by: OperatorFacts, facts: Facts) -> None:
    """Refuse facts nobody reads, and the absence of those a rule would miss."""
    names = (*described_by.required, *described_by.optional, *described_by.derive({}))
    for name in facts:
        if name not in names:
            raise ArgumentError(f"{operator}: unknown fact {name!r}{suggest(name, names)}")
    for name in described_by.required:
        if name not in facts:
            raise ArgumentError(f"{operator}: fact {name!r} is missing; state it, None for null")


def _message(table: LimitTable, rule: LimitRule, wrong: str) -> str:
    """A refusal: the mistake, its place, and the limit."""
    where = "" if rule.fact.startswith(rule.parameter) else f"{rule.parameter}: "
    when = f" (when {rule.condition})" if rule.condition else ""
    status = f"status {rule.status}" if rule.status is not None else "an error without status"
    permit = "permit" if "products" in table.product_title else "permits"
    return (
        f"{table.operator}: {where}{wrong}; {table.product_title} {permit} {rule.permitted}{when} "
        f"({status}, by {rule.basis})"
    )


def _way_out(rule: LimitRule, device: Device) -> str:
    """The way out for a call that breaks a row."""
    if rule.always:
        return rule.way_out or "correct it"
    way_out = rule.way_out or f"choose such a value{_around(rule)}"
    return f"{way_out}, or rules='hardware' for what {device.name} itself can do"


#: The most that a field of an img2col load holds, and how to do without more, by parameter.
_LOAD_FIELD = 255
_AROUND = {
    "weight.shape": "split the filter into narrower ones that add up, use im2col and matmul",
    "padding": "pad the input before, use im2col and matmul",
    "pad": "pad the input before",
    "dilation": "use im2col and matmul",
}


def _around(rule: LimitRule) -> str:
    """Other ways out of a rule that is a limit of load instructions, "" where it is none."""
    words = _AROUND.get(rule.parameter, "") if rule.most == _LOAD_FIELD else ""
    return f", {words}" if words else ""


def _is_integer(value: object) -> bool:
    """A value is an integer, and neither True nor False, which Python counts among them."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _applies(when: Mapping[str, tuple[Any, ...]], facts: Facts) -> bool:
    """Every fact named has one of the values listed."""
    return all(facts.get(name) in values for name, values in when.items())


def _when(node: YamlNode | None) -> dict[str, tuple[Any, ...]]:
    """The conditions of a row."""
    return {key: _values(child) for key, child in node.mapping().items()} if node else {}


def _values(node: YamlNode | None) -> tuple[Any, ...]:
    """A scalar or a list of scalars as a tuple."""
    if node is None:
        return ()
    items = node.items() if isinstance(node.value, list) else [node]
    return tuple(_scalar(item.text()) for item in items)


def _scalar(text: str) -> Any:
    """An int, yes or no as a bool, none as None, or the text itself."""
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    return {"yes": True, "no": False, "none": None}.get(text, text)


def _text(value: Any) -> str:
    """A value as tables and messages show it."""
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
