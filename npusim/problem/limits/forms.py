"""The gradients of the tensor compiler: names of their arguments, and the layers these describe.

Arguments have the names that the documentation has. A filter gradient reads a map and has one list
of sizes; an input gradient reads a filter, and its second list is the size of the input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from npusim.base.records import replace
from npusim.problem.convolution import Convolution, Sizes
from npusim.problem.limits.facts import Facts


class Form(Struct, frozen=True, kw_only=True):
    """The arguments of a gradient: operands, lists of sizes, a ``para_dict``.

    ``optional`` has the defaults of what its ``para_dict`` need not state, None where there is
    none; ``required`` is what is checked as None where it is not stated.
    """

    operands: tuple[str, str]
    lists: tuple[str, ...]
    pads: str
    res_dtype: str
    optional: Mapping[str, Any] = {}
    required: tuple[str, ...] = ()

    @property
    def of_filter(self) -> bool:
        """A filter's gradient, and not an input's."""
        return len(self.lists) == 1

    def _channels_last(self, c: Convolution) -> bool:
        """Lists have channels last, as those of an input in three dimensions."""
        return c.dims == 3 and not self.of_filter

    def sizes(self, c: Convolution) -> tuple[Sizes, ...]:
        """The lists of a convolution."""
        if self.of_filter:
            return (c.w_shape,)
        if self._channels_last(c):
            return (c.w_shape, (c.n, *c.spatial, c.cin))
        return (c.w_shape, (c.n, c.cin, *c.spatial))

    def para(self, c: Convolution, **more: Any) -> dict[str, Any]:
        """The ``para_dict`` of a convolution."""
        strides = c.stride
        dilations = (1, 1, *c.dilation)
        if self._channels_last(c):
            strides = (1, *c.stride, 1)
            dilations = (1, *c.dilation, 1)
        return {"strides": strides, self.pads: c.sides, "dilations": dilations, **more}


FILTER_2D = Form(
    operands=("input_x", "out_backprop"),
    lists=("filter_sizes",),
    pads="padding",
    res_dtype="float32",
)
INPUT_2D = Form(
    operands=("filters", "out_backprop"),
    lists=("filter_sizes", "input_sizes"),
    pads="padding",
    res_dtype="float16",
)
FILTER_3D = Form(
    operands=("x", "out_backprop"),
    lists=("filter_size",),
    pads="pads",
    res_dtype="float32",
)
INPUT_3D = Form(
    operands=("filter", "out_backprop"),
    lists=("filter_size", "input_size"),
    pads="pads",
    res_dtype="float16",
)


def form_of(facts: Facts) -> Form:
    """The form whose arguments facts have, its optional parts left out."""
    forms = (FILTER_2D, INPUT_2D, FILTER_3D, INPUT_3D)
    return next(form for form in forms if f"{form.operands[0]}.shape" in facts)


def described(facts: Facts) -> Convolution:
    """The layer of facts whose lists have the right lengths; its sizes may be wrong.

    Axes are in the order (D,) H, W in every form.
    """
    form = form_of(facts)
    cout, per_group, *kernel = facts[form.lists[0]]
    strides: Sequence[int] = facts["strides"]
    dilations: Sequence[int] = facts["dilations"][2:]
    spatial: Sequence[int]
    if form.of_filter:
        n, *depth, _, height, width, _ = facts[f"{form.operands[0]}.shape"]
        spatial = [*depth, height, width]
        groups = facts.get("groups", cout)  # a depth-wise filter has one for every channel
        cin = per_group * groups
    else:
        if len(kernel) == 3:
            n, *spatial, cin = facts[form.lists[1]]
            strides = strides[1:4]
            dilations = facts["dilations"][1:4]
        else:
            n, cin, *spatial = facts[form.lists[1]]
        groups = cin // per_group if per_group else 0
    pads: Sequence[int] = facts[form.pads]
    return Convolution.unchecked(
        n=n,
        cin=cin,
        cout=cout,
        spatial=tuple(spatial),
        kernel=tuple(kernel),
        stride=tuple(strides),
        padding=tuple(zip(pads[::2], pads[1::2], strict=True)),
        dilation=tuple(dilations),
        groups=groups,
    )


def layer_of(facts: Facts) -> Convolution:
    """The convolution of facts that the limits have let pass."""
    return replace(described(facts))
