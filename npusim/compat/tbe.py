"""The tensor compiler's backward convolutions, as its documentation writes them.

A documented example runs when its import lines become one::

    from npusim.compat.tbe import tvm, dsl

    x = tvm.placeholder((1, 1, 7, 7, 16), name="x", dtype="float16")
    ...
    dw = dsl.conv2d_backprop_filter(
        input_x=x, out_backprop=dy, filter_sizes=(16, 16, 1, 1), para_dict=para_dict
    )

A call checks its arguments at once and computes nothing: the tensor it returns has ``shape``,
``dtype`` and ``name``. Its ``run`` puts arrays in place of the placeholders and gives the
``npusim.Result`` of the operator::

    result = dw.run({"x": x_array, "dy": dy_array}, device="ascend910")
"""

from __future__ import annotations

from npusim.compat import tbe_dsl as dsl
from npusim.compat import tbe_tvm as tvm

__all__ = ["dsl", "tvm"]
