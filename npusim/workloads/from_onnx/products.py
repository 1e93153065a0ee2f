"""Products of matrices in an ONNX file: with weights, of two computed ones, and sums of indices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

from npusim.workloads.from_onnx.elements import combined, fused_activation
from npusim.workloads.from_onnx.nodes import Step, fault
from npusim.workloads.from_onnx.norms import reduced
from npusim.workloads.from_onnx.values import OnnxValue, Values
from npusim.workloads.graph import MULTIPLIES, Edge
from npusim.workloads.kinds import KINDS
from npusim.workloads.layers import LinearLayer

Sizes = tuple[int, ...]


class EinsumOperand(NamedTuple):
    """A matrix of a product, or a stack of them, as it lies: perhaps with its axes exchanged."""

    name: str
    turned: bool
    images: bool


def linear(
    values: Values,
    step: Step,
    left: OnnxValue,
    weight: OnnxValue,
    *,
    bias: OnnxValue | None = None,
    part: str = "",
) -> OnnxValue:
    """The product of all rows of ``left`` with one matrix (cin, cout).

    A weight as the file has it is a parameter of the node; one that was computed is read.
    """
    cin, cout = weight.shape
    laid, turned = values.exchanged(left, step) if len(left.shape) < 4 else (left, False)
    laid = values.laid(laid, step)
    *leading, _ = left.shape
    n = 1 if turned and len(leading) == 1 else leading[0]
    shape = (*leading[:-1], cin, leading[-1]) if turned else left.shape
    reads = [Edge(laid.name, shape)]
    parameters = {}
    right_turned = False
    if weight.weight:
        parameters["w"] = weight.name
    else:
        lying, right_turned = values.exchanged(weight, step)
        reads.append(Edge(lying.name, (cout, cin) if right_turned else (cin, cout)))
    if bias is not None:
        parameters["b"] = bias.name
    layer = LinearLayer(
        name="", cin=cin, cout=cout, n=n, rows=prod(leading) // n, bias=bias is not None,
        left_transposed=turned, right_transposed=right_turned,
    )  # fmt: skip
    images = left.images or weight.images
    result = values.add(step, layer, reads, parameters=parameters, part=part, images=images)
    return result.seen((*leading, cout))


def stack_of_products(
    values: Values,
    step: Step,
    left: EinsumOperand,
    right: EinsumOperand,
    *,
    stack: Sizes,
    rows: int,
    cin: int,
    cout: int,
    part: str = "",
) -> OnnxValue:
    """Products of two computed matrices: for a stack (rows, cin) by (cin, cout) each."""
    n = stack[0] if stack else 1
    layer = LinearLayer(
        name="", cin=cin, cout=cout, rows=rows, n=n, products=prod(stack) // n,
        left_transposed=left.turned, right_transposed=right.turned,
    )  # fmt: skip
    reads = [
        Edge(left.name, (*stack, cin, rows) if left.turned else (*stack, rows, cin)),
        Edge(right.name, (*stack, cout, cin) if right.turned else (*stack, cin, cout)),
    ]
    result = values.add(step, layer, reads, part=part, images=left.images or right.images)
    return result.seen((*stack, rows, cout))


def product(
    values: Values, step: Step, left: OnnxValue, right: OnnxValue, stack: Sizes, *, part: str = ""
) -> OnnxValue:
    """Products (.., rows, cin) by (.., cin, cout) for each of a ``stack``, repeated to it."""
    return stack_of_products(
        values,
        step,
        _of_stack(values, step, left, stack),
        _of_stack(values, step, right, stack),
        stack=stack,
        rows=left.shape[-2],
        cin=left.shape[-1],
        cout=right.shape[-1],
        part=part,
    )


def _of_stack(values: Values, step: Step, value: OnnxValue, stack: Sizes) -> EinsumOperand:
    """An operand of products for each of a ``stack``, repeated to it."""
    full = value
    if prod(value.shape[:-2]) != prod(stack):
        full = values.expanded(value, step, (*stack, *value.shape[-2:]))
    laid, turned = values.exchanged(full, step)
    return EinsumOperand(laid.name, turned, value.images)


# -- MatMul and Gemm -----------------------------------------------------------------------

#: Where products have their operands, and their bias, where these are not the first.
_MATRICES = {"QLinearMatMul": (0, 3), "QGemm": (0, 3)}


def matmul(values: Values, step: Step) -> None:
    """Note a product as ``MatMul`` defines it, of whole numbers or fused with others too."""
    first, second = _MATRICES.get(step.kind, (0, 1))
    left = values.value(step.inputs[first])
    right = values.value(step.inputs[second], trained=True)
    if step.attributes.get("transA", 0):
        left = _last_exchanged(left)
    if step.attributes.get("transB", 0):
        right = _last_exchanged(right)
    factor = float(step.attributes.get("alpha", 1.0))
    bias = None
    if factor == 1 and len(right.shape) == 2 and not right.images:
        bias = _bias_behind(values, step, right.shape[-1])
    if step.kind in ("MatMulIntegerToFloat", "DynamicQuantizeMatMul"):
        place = 6 if step.kind == "MatMulIntegerToFloat" else 4
        bias = _as_bias(values, step.operand(place), right.shape[-1]) or bias
    result = _matrices(values, step, left, right, bias)
    if factor != 1:
        result = _scaled(values, step, result, factor)
    values.put(step.outputs[0], result)


def narrow_matmul(values: Values, step: Step) -> None:
    """Note a product with weights of a few bits, which lie packed in the file."""
    left = values.value(step.inputs[0])
    packed, *_ = step.inputs[1:]
    cin = int(step.attributes["K"])
    cout = int(step.attributes["N"])
    name = values.builder.parameter(f"{packed}.unpacked", (cout, cin))
    weight = OnnxValue(name, (cin, cout), images=False, weight=True)
    bias = _as_bias(values, step.operand(5), cout)
    values.put(step.outputs[0], linear(values, step, left, weight, bias=bias))


def gemm(values: Values, step: Step) -> None:
    """Note a product of two matrices with what is added to it: a bias, or another matrix."""
    first, second = _MATRICES.get(step.kind, (0, 1))
    left = values.value(step.inputs[first])
    right = values.value(step.inputs[second], trained=True)
    left = _last_exchanged(left) if step.attributes.get("transA", 0) else left
    right = _last_exchanged(right) if step.attributes.get("transB", 0) else right
    added = step.operand(6 if step.kind == "QGemm" else 2)
    alpha = float(step.attributes.get("alpha", 1.0))
    beta = float(step.attributes.get("beta", 1.0))
    bias = None
    if added and alpha == 1 and beta == 1 and not right.images:
        bias = _as_bias(values, added, right.shape[-1])
    result = _matrices(values, step, left, right, bias)
    if alpha != 1:
        result = _scaled(values, step, result, alpha)
    if added and bias is None and beta:
        other = values.value(added)
        if beta != 1:
            other = _scaled(values, step, other, beta)
        result = combined(values, step, "add", result, other, result.shape, part="C")
    values.put(step.outputs[0], fused_activation(values, step, result))


def _last_exchanged(value: OnnxValue) -> OnnxValue:
    """The value with its last two axes exchanged."""
    axes = range(len(value.shape))
    return value.transposed([*axes[:-2], axes[-1], axes[-2]])


def _scaled(values: Values, step: Step, value: OnnxValue, factor: float) -> OnnxValue:
    return values.each(step, "scale", value, numbers=(factor,), part="scale")


def _as_bias(values: Values, name: str, cout: int) -> OnnxValue | None:
    """The parameter of this name, if it has one number for each feature; None of others."""
    if not name:
        return None
    shape = values.sized.shapes.get(name, ())
    fits = prod(shape) == cout and (shape[-1:] == (cout,) or cout == 1)
    is_parameter = name in values.sized.weights or name in values.sized.numbers
    value = values.value(name, trained=True) if fits and is_parameter else values.values.get(name)
    return value if fits and value is not None and value.weight else None


def _bias_behind(values: Values, step: Step, cout: int) -> OnnxValue | None:
    """The bias that the next node adds to a product which nothing else reads.

    The sum is then part of the product, and its node another name of it.
    """
    reader = values.only_reader(step.outputs[0])
    if reader is None or reader.kind != "Add":
        return None
    others = [name for name in reader.inputs if name != step.outputs[0]]
    bias = _as_bias(values, others[0], cout) if len(others) == 1 else None
    if bias is not None:
        values.biased[reader.outputs[0]] = step.outputs[0]
    return bias


def _matrices(
    values: Values, step: Step, left: OnnxValue, right: OnnxValue, bias: OnnxValue | None
) -> OnnxValue:
    """The product of two values whose stacks are broadcast; a vector is a row, or a column."""
    one_row = len(left.shape) == 1
    one_column = len(right.shape) == 1
    left = left.seen((1, *left.shape)) if one_row else left
    right = right.seen((*right.shape, 1)) if one_column else right
    if left.shape[-1] != right.shape[-2]:
        raise fault(
            values.sized.file, step, f"it multiplies {list(left.shape)} with {list(right.shape)}; "
            "the columns of the first must be the rows of the second"
        )  # fmt: skip
    result = _stacks(values, step, left, right, bias)
    if one_row or one_column:
        result = values.laid(result, step)
    if one_row:
        result = result.seen((*result.shape[:-2], result.shape[-1]))
    if one_column:
        result = result.seen(result.shape[:-1])
    return result


def _stacks(
    values: Values, step: Step, left: OnnxValue, right: OnnxValue, bias: OnnxValue | None
) -> OnnxValue:
    """The products of two stacks of matrices, of which axes of one element are repeated."""
    stack = _broadcast(left.shape[:-2], right.shape[:-2])
    out = (*stack, left.shape[-2], right.shape[-1])
    several = prod(stack) > 1
    left_is_single = prod(left.shape[:-2]) == 1
    right_is_single = prod(right.shape[:-2]) == 1
    if right_is_single and not right.images:
        matrix = _matrix(values, step, right)
        return linear(values, step, left, matrix, bias=bias).seen(out)
    if several and left_is_single and not left.images:
        return _last_exchanged(_weights_first(values, step, left, right))
    if several and right_is_single:  # one computed matrix for all rows
        left = values.laid(left, step)
        rows = left.seen((prod(left.shape[:-1]), left.shape[-1]))
        matrix = _matrix(values, step, right)
        return product(values, step, rows, matrix, ()).seen(out)
    return product(values, step, left, right, stack).seen(out)


def _weights_first(values: Values, step: Step, weight: OnnxValue, right: OnnxValue) -> OnnxValue:
    """One matrix (rows, cin) times each of a stack (cin, cout), as (.., cout, rows).

    That is the product of the stack, its axes exchanged, with the matrix as a weight.
    """
    *stack, cin, cout = right.shape
    columns = values.laid(right, step).seen((prod(stack), cin, cout))
    weight = _last_exchanged(_matrix(values, step, weight))
    result = linear(values, step, _last_exchanged(columns), weight)
    return result.seen((*stack, cout, weight.shape[-1]))


def _matrix(values: Values, step: Step, value: OnnxValue) -> OnnxValue:
    """A matrix without the axes of one element before it."""
    return value if len(value.shape) == 2 else values.laid(value, step).seen(value.shape[-2:])


def _broadcast(first: Sizes, second: Sizes) -> Sizes:
    """The stack of two stacks, of which axes of one element are repeated."""
    axes = max(len(first), len(second))
    first = (1,) * (axes - len(first)) + first
    second = (1,) * (axes - len(second)) + second
    return tuple(b if a == 1 else a for a, b in zip(first, second, strict=True))


# -- Einsum --------------------------------------------------------------------------------


class _Indexed(NamedTuple):
    """A value, and the index of each of its axes: letters of an equation."""

    value: OnnxValue
    term: str

    def in_order(self, letters: Sequence[str]) -> OnnxValue:
        """The value with its axes in the order of these letters."""
        return self.value.transposed([self.term.index(letter) for letter in letters])


def einsum(values: Values, step: Step) -> None:
    """Note a sum of products by an equation of indices: two operands after another."""
    equation = step.attributes["equation"].replace(" ", "")
    operands = [values.value(name) for name in step.inputs]
    terms, result = indices_of(equation, [len(value.shape) for value in operands])
    if any(len(set(term)) < len(term) for term in terms):
        values.unknown(step, f"{MULTIPLIES}Einsum {equation}" if len(terms) > 1 else "")
        return
    output = _Indexed(operands[0], terms[0])
    for place in range(1, len(operands)):
        later = set("".join(terms[place + 1 :])) | set(result)
        operand = _Indexed(operands[place], terms[place])
        output = _contracted(values, step, output, operand, later, result)
    output = _summed(values, step, output, set(result))
    values.put(step.outputs[0], output.in_order(result))


def indices_of(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """The indices of each operand and of the result, with letters for those behind "..."."""
    left, arrow, result = equation.partition("->")
    terms = left.split(",")
    spare = [letter for letter in map(chr, range(0x3B1, 0x3D0)) if letter not in equation]
    widest = max(
        (rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True)
         if "..." in term), default=0,
    )  # fmt: skip
    dots = "".join(spare[:widest])
    if not arrow:
        letters = "".join(terms).replace("...", "")
        single = sorted(letter for letter in set(letters) if letters.count(letter) == 1)
        result = "".join(["..." if "..." in left else "", *single])
    written_out = []
    for term, rank in zip(terms, ranks, strict=True):
        few = rank - len(term.replace("...", ""))
        written_out.append(term.replace("...", dots[widest - few :]))
    return written_out, result.replace("...", dots)


def _summed(values: Values, step: Step, operand: _Indexed, wanted: set[str]) -> _Indexed:
    """The operand with the sums over indices that nothing else has."""
    value = operand.value
    term = operand.term
    axes = [axis for axis, letter in enumerate(term) if letter not in wanted]
    rest = "".join(letter for letter in term if letter in wanted)
    sizes = tuple(value.shape[axis] for axis in range(len(term)) if axis not in axes)
    if not axes:
        return operand
    if prod(value.shape[axis] for axis in axes) == 1:
        return _Indexed(values.laid(value, step).seen(sizes), rest)
    kind = "sum" if "sum" in KINDS else "avg_pool"
    result = reduced(values, step, value, axes, kind, part="sum")
    if kind == "avg_pool":  # a sum is the mean times how many there are
        many = prod(value.shape[axis] for axis in axes)
        result = _scaled(values, step, result, float(many))
    return _Indexed(result.seen(sizes), rest)


class _Letters(NamedTuple):
    """The indices of a product of two operands: of stacks, rows, what is summed, and columns."""

    stack: Sequence[str]
    rows: Sequence[str]
    inner: Sequence[str]
    columns: Sequence[str]
    extent: Mapping[str, int]

    def sizes(self, letters: Sequence[str]) -> Sizes:
        """The sizes of axes with these indices."""
        return tuple(self.extent[letter] for letter in letters)

    @property
    def exchanged(self) -> _Letters:
        """Those of the product with its operands in the other order."""
        return self._replace(rows=self.columns, columns=self.rows)


def _contracted(
    values: Values,
    step: Step,
    first: _Indexed,
    second: _Indexed,
    later: set[str],
    result: str,
) -> _Indexed:
    """The sum of products of two operands, of which ``later`` operands and the result have some."""
    left = _summed(values, step, first, later | set(second.term))
    right = _summed(values, step, second, later | set(left.term))
    extent = _extent(left, right)
    left = _repeated(values, step, left, extent)
    right = _repeated(values, step, right, extent)
    letters = _letters(left.term, right.term, extent, later, result)
    term = "".join([*letters.stack, *letters.rows, *letters.columns])
    shape = letters.sizes(term)
    if not letters.inner and not (letters.rows and letters.columns):
        first_factor = _aligned(values, step, left, term)
        second_factor = _aligned(values, step, right, term)
        output = combined(values, step, "mul", first_factor, second_factor, shape, part="mul")
    elif not letters.stack and right.value.weight:
        output = _linear_of(values, step, left, right, letters)
    elif not letters.stack and left.value.weight:
        output = _linear_of(values, step, right, left, letters.exchanged)
        term = "".join([*letters.columns, *letters.rows])
        shape = letters.sizes(term)
    else:
        output = stack_of_products(
            values,
            step,
            _operand(values, step, left, letters.stack, letters.rows, letters.inner),
            _operand(values, step, right, letters.stack, letters.inner, letters.columns),
            stack=letters.sizes(letters.stack),
            rows=prod(letters.sizes(letters.rows)),
            cin=prod(letters.sizes(letters.inner)),
            cout=prod(letters.sizes(letters.columns)),
        )
    return _Indexed(output.seen(shape), term)


def _extent(left: _Indexed, right: _Indexed) -> dict[str, int]:
    """The size of the axes of each index, of which one operand may have one element."""
    extent = dict(zip(left.term, left.value.shape, strict=True))
    for letter, size in zip(right.term, right.value.shape, strict=True):
        extent[letter] = max(size, extent.get(letter, 1))
    return extent


def _letters(
    left: str, right: str, extent: Mapping[str, int], later: set[str], result: str
) -> _Letters:
    """The part that each index has in a product; stacks have the order of the result."""
    both = [letter for letter in left if letter in right]
    stack = [letter for letter in result if letter in both]
    stack += [letter for letter in both if letter in later and letter not in stack]
    return _Letters(
        stack,
        rows=[letter for letter in left if letter not in both],
        inner=[letter for letter in both if letter not in stack],
        columns=[letter for letter in right if letter not in both],
        extent=extent,
    )


def _linear_of(
    values: Values, step: Step, left: _Indexed, weight: _Indexed, letters: _Letters
) -> OnnxValue:
    """The product of the rows of an operand with a parameter."""
    inner = prod(letters.sizes(letters.inner))
    columns = prod(letters.sizes(letters.columns))
    laid = values.laid(left.in_order([*letters.rows, *letters.inner]), step)
    rows = laid.seen((*(letters.sizes(letters.rows) or (1,)), inner))
    matrix = weight.in_order([*letters.inner, *letters.columns]).seen((inner, columns))
    return linear(values, step, rows, matrix)


def _repeated(values: Values, step: Step, operand: _Indexed, extent: Mapping[str, int]) -> _Indexed:
    """The operand with its axes of one element repeated to what the other one has."""
    shape = tuple(extent[letter] for letter in operand.term)
    if shape == operand.value.shape:
        return operand
    return operand._replace(value=values.expanded(operand.value, step, shape))


def _aligned(values: Values, step: Step, operand: _Indexed, letters: str) -> OnnxValue:
    """The operand with axes in the order of ``letters``, one element for each that it lacks."""
    present = [letter for letter in letters if letter in operand.term]
    laid = values.laid(operand.in_order(present), step)
    extent = dict(zip(present, laid.shape, strict=True))
    return laid.seen(tuple(extent.get(letter, 1) for letter in letters))


def _operand(
    values: Values,
    step: Step,
    operand: _Indexed,
    stack: Sequence[str],
    first: Sequence[str],
    second: Sequence[str],
) -> EinsumOperand:
    """An operand as a stack of matrices: as it lies where that is one of both orders."""
    plain = operand.in_order([*stack, *first, *second])
    turned = operand.in_order([*stack, *second, *first])
    exchanged = bool(plain.axes) and (not turned.axes or operand.term[-1:] in list(first))
    laid = values.laid(turned if exchanged else plain, step)
    return EinsumOperand(laid.name, exchanged, operand.value.images)
