"""The keywords of a call, as type checkers see them and as a call takes them."""

from __future__ import annotations

from dataclasses import fields

from npusim.call.options import Keywords, Options


def test_type_checkers_know_every_keyword_of_a_call() -> None:
    types = {field.name: field.type for field in fields(Options)}
    annotations = {name: kind.__forward_arg__ for name, kind in Keywords.__annotations__.items()}
    assert annotations == types
