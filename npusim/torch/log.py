"""A log of layers' backwards that a framework computed, each simulated on one device.

It knows no framework: ``npusim.torch`` feeds it. Equal calls share one ``Result``.
"""

# Tables need pandas, which takes most of a second: only they import it.
# ruff: noqa: PLC0415

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import isfinite, isinf, sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from npusim.base.dtypes import FP32, DType, dtype, promote
from npusim.base.errors import ArgumentError, NpusimError
from npusim.base.records import replace
from npusim.call.call import Call
from npusim.call.options import Options
from npusim.call.spec import Array, Operand, Spec, spec
from npusim.ops import CARDS
from npusim.ops.conv_backward import convolution_backward
from npusim.ops.cube_math import cube_math, cube_math_number
from npusim.ops.linear import linear_layer
from npusim.problem.reference import relative_error, without_equal_infinities
from npusim.results import Result
from npusim.results.writers.log_text import GRADIENTS, render
from npusim.version import __version__
from npusim.workloads import LinearLayer

if TYPE_CHECKING:
    import pandas as pd

#: Arguments of a call behind its tensors and ``bias_sizes``, but for ``output_mask``.
SETTINGS = ("stride", "padding", "dilation", "transposed", "output_padding", "groups")

#: Columns of ``Log.table``; a promise to users.
COLUMNS = (
    "layer",
    "grad_output",
    "input",
    "weight",
    "dtype",
    *SETTINGS,
    "mask",
    "arithmetic",
    "kernels",
    "cycles",
    "time_us",
    "bottleneck",
    "count",
    "error_grad_input",
    "error_grad_weight",
    "error_grad_bias",
    "tolerance",
    "ok",
    "reason",
    "result",
)

#: Largest relative error by arithmetic or element type: the vendor's acceptance thresholds.
TOLERANCES = {"fp32": 2.0**-13, "hf32": 2.0**-11, "fp16": 2.0**-10, "bf16": 2.0**-7}

_SMALLEST_NORMAL = {"fp16": 2.0**-14, "bf16": 2.0**-126, "fp32": 2.0**-126}

#: Columns with gaps, and the types that have room for them.
_KINDS = {
    "kernels": "Int64",
    "cycles": "Int64",
    "result": "Int64",
    "ok": "boolean",
} | dict.fromkeys(("time_us", *(f"error_{name}" for name in GRADIENTS), "tolerance"), "float64")

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ConvCall:
    """The arguments of one ``aten::convolution_backward``; equal calls take equal time.

    ``shapes`` and ``dtypes`` (the framework's names) are of grad_output, input and weight.
    ``strides`` are those, in elements, of operands and gradients that are not contiguous, by name.
    The call of a ``product`` of matrices has no other sizes; where it is a gradient that is known
    as no layer's, it is a product going forward. Of a ``fold`` - the operator that computes it,
    "im2col_backward" for the gradient of unfold and "im2col" for that of fold - ``shapes`` are
    those of the gradient that is read, of the one that is made, and of the kernel.
    """

    shapes: tuple[Shape, Shape, Shape]
    dtypes: tuple[str, str, str]
    bias_sizes: Shape | None = None
    stride: Shape = ()
    padding: Shape = ()
    dilation: Shape = ()
    transposed: bool = False
    output_padding: Shape = ()
    groups: int = 1
    output_mask: tuple[bool, bool, bool]
    strides: tuple[tuple[str, Shape], ...] = ()
    product: LinearLayer | None = None
    fold: str = ""

    @property
    def settings(self) -> dict[str, Any]:
        """The arguments ``SETTINGS``."""
        return {name: getattr(self, name) for name in SETTINGS}

    @property
    def dtype(self) -> str:
        """One short name, or three where operands differ."""
        names = [_short(name) for name in self.dtypes]
        return names[0] if len(set(names)) == 1 else "/".join(names)

    @property
    def layouts(self) -> dict[str, Spec]:
        """How operands and gradients lie that are not contiguous."""
        output, input_, weight = self.shapes
        output_type, input_type, weight_type = map(dtype, self.dtypes)
        if self.fold:
            read = "image" if self.fold == "im2col" else "grad_output"
            folded = {read: output, "out": input_}
            return {
                name: spec(folded[name], output_type, strides) for name, strides in self.strides
            }
        tensors = {
            "grad_output": (output, output_type),
            "input": (input_, input_type),
            "weight": (weight, weight_type),
            "grad_input": (input_, promote((input_type, output_type), FP32)),
            "grad_weight": (weight, promote((weight_type, output_type), FP32)),
        }
        return {name: spec(*tensors[name], strides) for name, strides in self.strides}

    @property
    def promoted(self) -> DType:
        """The type the operands are computed in together."""
        return promote((dtype(name) for name in self.dtypes), FP32)

    @property
    def results(self) -> tuple[str, ...]:
        """The names of the results that are computed of a product."""
        named = zip(("input", "weight", "bias"), self.output_mask, strict=True)
        return tuple(name for name, on in named if on)

    def cube_math_type(self, wanted: int | str | None) -> int:
        """The cubeMathType; None lets fp32 be rounded and keeps the rest."""
        return cube_math_number(int(self.promoted is FP32) if wanted is None else wanted)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One recorded call: ``result`` indexes ``Log.results``, None where it was refused.

    ``errors`` has one entry per gradient, None where there is none or nothing was compared.
    """

    call: ConvCall
    layer: str
    result: int | None
    reason: str
    arithmetic: str
    errors: tuple[float | None, ...] = (None, None, None)
    ok: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Data of one call: operands, the framework's gradients, and on demand their noise.

    ``noise(i)`` is the root of the summed squares of the terms of gradient ``i``, over the whole
    gradient: what independent rounding errors of the terms are relative to.
    """

    operands: tuple[Array, Array, Array]
    gradients: tuple[Array | None, ...]
    noise: Callable[[int], float]


#: Fetches the data of a call.
Fetch = Callable[[], Evidence]


class Log:
    """The calls of a trace in order, and the ``Result`` of each distinct one."""

    def __init__(
        self, options: Options, check: bool, cube_math_type: int | str | None, framework: str
    ) -> None:
        self.check = check
        self.cube_math_type = cube_math_type
        self.framework = framework
        probe = Call("convolution_backward", options, True)  # wrong options fail here, not inside
        if cube_math_type is not None:
            cube_math_number(cube_math_type)
        self.device = probe.device
        self.options = replace(options, device=probe.device, cores=probe.groups, check=check)
        self.entries: list[Entry] = []
        self.results: list[Result] = []
        self.untimed: Counter[str] = Counter()  # operations of backward passes that are no layer's
        self._known: dict[ConvCall, Entry] = {}  # the first entry of each distinct call

    @property
    def time_us(self) -> float:
        """Microseconds of all calls that the device takes, repetitions included."""
        results = [entry.result for entry in self.entries if entry.result is not None]
        return float(sum(self.results[index].time_us for index in results))

    def record(self, call: ConvCall, layer: str, evidence: Fetch | None = None) -> None:
        """Append an entry; the call is simulated unless its time is known and nothing is checked.

        ``evidence`` fetches the data for a check. What the device refuses becomes the entry's
        ``reason``; so does, with a warning, a defect of npusim: the training step goes on.
        """
        entry = self._known.get(call)
        checked = self.check and evidence is not None
        if entry is None or (checked and entry.result is not None):
            try:
                entry = self._simulated(call, layer, entry, evidence)
            except NpusimError as error:
                entry = _refused(call, str(error))
            except Exception as error:  # an observer must not stop what it observes
                entry = _refused(call, f"npusim failed with {type(error).__name__}: {error}")
                warnings.warn(f"{call}: {entry.reason}; please report it", stacklevel=2)
            self._known.setdefault(call, entry)
        self.entries.append(replace(entry, layer=layer))

    def _simulated(
        self, call: ConvCall, layer: str, entry_before: Entry | None, evidence: Fetch | None
    ) -> Entry:
        number = call.cube_math_type(self.cube_math_type)
        data = evidence() if self.check and evidence is not None else None
        specs = [spec(s, d) for s, d in zip(call.shapes, call.dtypes, strict=True)]
        result = self._run(call, layer, number, data.operands if data else specs)
        index = len(self.results) if entry_before is None else entry_before.result
        if call.fold:
            name = call.promoted.name
        else:
            name = cube_math(call.promoted, number, self.device).name
        entry = Entry(call=call, layer="", result=index, reason="", arithmetic=name)
        if data is not None:
            entry = _compared(entry, result, data)
        if entry_before is None:
            self.results.append(result)
        return entry

    def _run(self, call: ConvCall, layer: str, number: int, operands: Sequence[Operand]) -> Result:
        grad_output, input_, weight = operands
        report = self.options.progress

        def labelled(kernel: str, phase: str, done: int, total: int) -> None:
            assert report is not None
            report(f"{layer} (call {len(self.entries) + 1}) {kernel}", phase, done, total)

        options = replace(self.options, progress=report and labelled)
        if call.fold:
            return _folded(call, grad_output, replace(options, layouts=call.layouts))
        if call.product is not None:
            wanted = call.results or ("output",)
            return linear_layer(call.product, call.promoted, wanted, options, number)
        return convolution_backward(
            grad_output,
            input_,
            weight,
            bias_sizes=call.bias_sizes,
            **call.settings,
            output_mask=call.output_mask,
            cube_math_type=number,
            **vars(replace(options, layouts=call.layouts)),
        )

    def rows(self) -> list[dict[str, Any]]:
        """``table()`` as plain values."""
        counts = Counter(entry.call for entry in self.entries)
        return [self._row(entry, counts[entry.call]) for entry in self.entries]

    def table(self) -> pd.DataFrame:
        """One row per call, in order.

        ``count`` is how many calls of the log have the same arguments, ``result`` the index in
        ``results``. ``error_...`` are relative Frobenius errors against the framework's gradients;
        where the terms of a gradient cancel, relative to the root of their summed squares, and at
        least to its type's smallest normal number. Infinities of one sign are equal; where an
        element is not finite and not alike on both sides, the error is no finite number and
        ``reason`` tells where. ``tolerance`` is their limit
        (for the bias that of the element type alone, see ``TOLERANCES``), ``ok`` whether all keep
        it. Products of matrices and gradients of fold and unfold are timed, and not compared.
        """
        import pandas as pd

        return pd.DataFrame(self.rows(), columns=list(COLUMNS)).astype(_KINDS)

    def _row(self, entry: Entry, count: int) -> dict[str, Any]:
        call = entry.call
        result = None if entry.result is None else self.results[entry.result]
        return {
            "layer": entry.layer,
            **dict(zip(("grad_output", "input", "weight"), call.shapes, strict=True)),
            "dtype": call.dtype,
            **call.settings,
            "mask": call.output_mask,
            "arithmetic": entry.arithmetic,
            "kernels": result and len(result.runs),
            "cycles": result and result.cycles,
            "time_us": result and result.time_us,
            "bottleneck": result.bottleneck if result else "",
            "count": count,
            **{f"error_{n}": e for n, e in zip(GRADIENTS, entry.errors, strict=True)},
            "tolerance": _limits(entry)[1] if entry.ok is not None else None,
            "ok": entry.ok,
            "reason": entry.reason,
            "result": entry.result,
        }

    def to_json(self) -> dict[str, Any]:
        """The log as plain values, ready for ``json.dumps``; errors that are no number are null."""
        calls = self.rows()
        for row in calls:
            for name in GRADIENTS:
                error = row[f"error_{name}"]
                row[f"error_{name}"] = error if error is not None and isfinite(error) else None
        return {
            "npusim_version": __version__,
            "framework": self.framework,
            "device": self.device.name,
            "cube_math_type": self.cube_math_type,
            "check": self.check,
            "time_us": self.time_us,
            "untimed": dict(self.untimed),
            "calls": calls,
            "results": [result.to_json() for result in self.results],
        }

    def summary(self) -> str:
        """Text for people, at most 80 columns wide: layers with their time, then refusals."""
        return render(self.device.name, self.time_us, self.rows(), self.untimed)

    def __repr__(self) -> str:
        """One line: how many calls, and their time."""
        return f"<Log on {self.device.name}: {len(self.entries)} calls, {self.time_us:.3f} us>"

    def _repr_html_(self) -> str:
        """The table that a notebook shows at the end of a cell."""
        return f"<pre>{escape(self.summary())}</pre>"


def _folded(call: ConvCall, gradient: Operand, options: Options) -> Result:
    """The gradient of fold or unfold, on the operator that the chip's library has for it."""
    card = CARDS[call.fold]
    settings = [call.shapes[2], call.dilation, call.padding, call.stride]
    if call.fold == "im2col_backward":
        settings.insert(0, call.shapes[1][-2:])
    usable = {name: value for name, value in vars(options).items() if name not in card.without}
    return card.function(gradient, *settings, **usable)


def _compared(entry: Entry, result: Result, data: Evidence) -> Entry:
    """``entry`` with the errors of the gradients that both sides computed."""
    limits = _limits(entry)
    pairs = zip(result.outputs or (), data.gradients, strict=True)
    errors = tuple(
        None if got is None or want is None else _error(got, want, limits[i], data.noise, i)
        for i, (got, want) in enumerate(pairs)
    )
    ok = all(error is None or error <= limits[i] for i, error in enumerate(errors))
    named = zip(GRADIENTS, result.outputs or (), data.gradients, strict=True)
    reasons = [
        _unlike_infinities(name, got, want)
        for name, got, want in named
        if got is not None and want is not None
    ]
    return replace(entry, errors=errors, ok=ok, reason="; ".join(filter(None, reasons)))


def _unlike_infinities(name: str, got: Array, want: Array) -> str:
    """The words for elements that are not finite and not alike on both sides, "" without any."""
    computed, exact = without_equal_infinities(got, want)
    apart = ~(np.isfinite(computed) & np.isfinite(exact))
    count = int(np.count_nonzero(apart))
    if not count:
        return ""
    place = tuple(int(i) for i in np.argwhere(apart)[0])
    here = float(computed[place])
    there = float(exact[place])
    overflow = f": beyond {dtype(want.dtype).range_text}" if isinf(here) or isinf(there) else ""
    return (
        f"{name} has {count:,} of {want.size:,} elements that are infinite or no number and not "
        f"alike on both sides{overflow}; first at {list(place)}: {here:.6g} here, {there:.6g} in "
        "the framework"
    )


def _error(got: Array, want: Array, limit: float, noise: Callable[[int], float], i: int) -> float:
    """Relative Frobenius error of gradient ``i``; NaN or infinite where infinities are unlike.

    The same infinities, as of gradients that overflow under a loss scaler, are equal.

    Terms that cancel, as in the bias gradient before a normalisation, leave rounding noise on
    both sides, and an element below the smallest normal number has lost digits on both: beyond
    the limit, the error is relative to these scales if they are larger than the gradient.
    """
    with np.errstate(all="ignore"):
        error = relative_error(got, want)
        if not error > limit:
            return error
        computed, exact = without_equal_infinities(got, want)
        smallest = _SMALLEST_NORMAL[dtype(want.dtype).name] * sqrt(want.size)
        scale = max(float(np.linalg.norm(exact)), noise(i), smallest)
        return float(np.linalg.norm(computed - exact)) / scale


def _limits(entry: Entry) -> tuple[float, float, float]:
    """Tolerances of the three gradients: the coarser of arithmetic and type, the bias by type."""
    by_type = max((TOLERANCES.get(_short(n), 0.0) for n in entry.call.dtypes), default=0.0)
    computed = max(by_type, TOLERANCES.get(entry.arithmetic, 0.0))
    return computed, computed, by_type


def _refused(call: ConvCall, reason: str) -> Entry:
    return Entry(call=call, layer="", result=None, reason=reason, arithmetic="")


def _short(name: str) -> str:
    """npusim's name of an element type, or the framework's where npusim has none."""
    try:
        return dtype(name).name
    except ArgumentError:
        return name
