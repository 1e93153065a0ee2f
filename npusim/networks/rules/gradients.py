"""The operations of a step going backward.

Gradients follow from the table of rules; where a value is read more than once, its gradients are
added.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property

from npusim.base.dtypes import FP32, DType
from npusim.networks.rules.forward import Forward
from npusim.networks.rules.table import OperationForm, chain_of
from npusim.networks.rules.values import SLICE, Operation, Value
from npusim.workloads import ElementwiseLayer
from npusim.workloads.graph import Node


class Gradients:
    """Notes the gradients of a network whose operations going ``forward`` are noted.

    They go to the same ``step``. ``gradients`` are the parts of the gradient of each value and
    parameter, by its name.
    """

    def __init__(self, forward: Forward) -> None:
        self.forward = forward
        self.workload = forward.workload
        self.step = forward.step
        self.rules = forward.rules
        self.symbols = forward.symbols
        self.trained = forward.trained
        self.gradients: dict[str, list[str]] = {}

    def note_all(self) -> None:
        """Note the gradients of all that is trained, from the ends of the network back."""
        for node in self.forward.ends:
            if node.trained:
                self._loss(node.name)
        for node in reversed(self.workload.nodes):
            dy = self._gradient(node.name) if node.trained else None
            if dy is not None:
                self.symbols[node.name]["dy"] = dy
            group = self.forward.splits.get(node.name, (node,))
            if node is not group[0]:
                continue  # it is read with the first of them
            flows = [member for member in group if "dy" in self.symbols[member.name]]
            if len(flows) == len(group):
                self._gradients_of(node, group)
            else:
                for member in flows:  # the others' parts have no gradient
                    self._gradients_of(member, (member,))
        for name in self.step.parameters:
            self._parameter_gradient(name)
        self._fix_what_has_no_gradient()

    def _fix_what_has_no_gradient(self) -> None:
        """Move parameters that no gradient reaches, as behind ``detach``, to those that stay."""
        step = self.step
        fixed = [name for name in step.parameters if f"{name}.gradient" not in step.values]
        step.parameters = [name for name in step.parameters if name not in fixed]
        step.fixed += fixed

    def _gradients_of(self, node: Node, group: Sequence[Node]) -> None:
        """The gradients of what a node reads and has."""
        rule = self.rules[node.name]
        names = self.symbols[node.name]
        edges = {f"x{number}": edge for number, edge in enumerate(node.reads, 1)}
        wanted = [
            symbol
            for symbol, edge in edges.items()
            if symbol in names and edge.gradient and self.trained[edge.value]
        ]
        for symbol in wanted:
            if {"x*", symbol} & {*rule.passes_on}:
                self._add_gradient(edges[symbol].value, names["dy"])
        for form in rule.backward:
            if form.op == "split" and (len(wanted) < len(edges) or _unequal(node)):
                self._gradients_of_parts(node, form, wanted)
            else:
                self._note_gradients(
                    node, self.forward.of_group(form, group, "dy", "concat"), wanted
                )

    def _gradients_of_parts(self, node: Node, form: OperationForm, wanted: Sequence[str]) -> None:
        """The gradients of some values of a concatenation, each cut out of that of the whole.

        Frameworks do so for all values where these differ in shape: MindSpore's rule for the
        gradient of Concat (ops/_grad/grad_array_ops.py) has one Split of equal parts, else a Slice
        of each.
        """
        layer = node.layer
        assert isinstance(layer, ElementwiseLayer)
        shapes = [edge.shape or (1,) for edge in node.reads]
        axis = next(a for a, size in enumerate(layer.out) if shapes[0][a] < size)
        begin = 0
        for number, shape in enumerate(shapes, 1):
            symbol = f"x{number}"
            after = layer.out[axis] - begin - shape[axis]
            if symbol in wanted:
                sides = [(0, 0)] * len(shape)
                sides[axis] = (-begin, -after)
                part = ElementwiseLayer(
                    kind="slice", shape=layer.out, out=shape, padding=tuple(sides)
                )
                self._value_gradient(node, symbol, f"d{symbol}")
                name = f"{form.name}.{number}"
                cut = form._replace(name=name, op=SLICE, writes=(f"d{symbol}",))
                self.forward.note(node, cut, "backward", layer=part)
                self._flow(node, f"d{symbol}")
            begin += shape[axis]

    def _loss(self, end: str) -> None:
        """The gradient of a value that ends the network: of softmax with cross-entropy, or given.

        Of several ends, such as an auxiliary classifier, those of as many classes share labels.
        """
        value = self.step.values[end]
        last = self.workload.nodes[-1].name
        gradient = self.step.value(value._replace(name=f"{end}.gradient"))
        self.gradients[end] = [gradient]
        if value.kind != "rows":
            return
        prefix = "" if end == last else f"{end}."
        shares_labels = value.shape == self.step.values[last].shape
        name = "labels" if shares_labels else f"{prefix}labels"
        labels = self.step.value(Value(name, value.shape, value.dtype, "rows"))
        loss = self.step.value(Value(f"{prefix}loss", value.shape[:1], FP32, "rows"))
        self.step.targets.append(labels)
        self.step.results.append(loss)
        operation = Operation(
            loss,
            "loss",
            "backward",
            core="softmax_loss",
            inputs=(end, labels),
            outputs=(loss, gradient),
        )
        self.step.operations.append(operation)

    def _note_gradients(self, node: Node, form: OperationForm, wanted: Sequence[str]) -> None:
        """An operation of the gradients, where somebody wants one of its results."""
        operands = self._operand_gradients(node, form, wanted)
        weights = self._weight_gradients(node, form)
        stored = [word for word in form.writes if word in self.rules[node.name].kept]
        sums = self._sums_behind(node, form, weights) if wanted else []
        wanted_words = (*operands, *weights, *sums, *stored)
        if not wanted_words:
            return
        form = form._replace(writes=wanted_words)
        if weights and node.count > 1:
            self._repeated_gradient(node, form, weights)
        else:
            self.forward.note(node, form, "backward")
        for word in operands:
            self._flow(node, word)
        for word in weights:
            self._flow_to_weight(node, word)

    def _operand_gradients(
        self, node: Node, form: OperationForm, wanted: Sequence[str]
    ) -> list[str]:
        """The gradients of operands that an operation computes, named, by their symbols."""
        keys = []
        for word in form.writes:
            if word == "dx*":
                symbols = list(wanted)
            elif word in ("dx", "dx1", "dx2"):
                symbols = ["x1" if word == "dx" else word[1:]]
            else:
                continue
            for symbol in symbols:
                if symbol in wanted:
                    key = "dx" if word == "dx" else f"d{symbol}"
                    self._value_gradient(node, symbol, key)
                    keys.append(key)
        return keys

    def _weight_gradients(self, node: Node, form: OperationForm) -> list[str]:
        """The gradients of parameters that an operation computes, named, by their symbols."""
        names = self.symbols[node.name]
        operands = ("dx*", "dx", "dx1", "dx2")
        return [
            word
            for word in form.writes
            if word not in operands
            and word not in self.rules[node.name].kept
            and word[1:] in names
            and self._parameter_part(node, word[1:], word)
        ]

    def _sums_behind(self, node: Node, form: OperationForm, weights: Sequence[str]) -> list[str]:
        """Name sums that the gradient of the operand needs though no parameter has them as its own.

        A normalisation has them whether its scale and shift are trained, frozen or absent.
        """
        names = self.symbols[node.name]
        read = {word for each in self.rules[node.name].backward for word in each.reads}
        parameters = {f"d{symbol}": symbol for symbol in self.rules[node.name].parameters}
        words = [
            word
            for word in form.writes
            if word in read and word in parameters and word not in weights
        ]
        for word in words:
            like = self.step.values[names[parameters[word]]]
            names[word] = self.step.value(like._replace(name=f"{node.name}.{word}", dtype=FP32))
        return words

    def _value_gradient(self, node: Node, symbol: str, key: str) -> None:
        """Name the gradient of an operand."""
        names = self.symbols[node.name]
        source = self.step.values[names[symbol]]
        name = f"{source.name}.gradient.{node.name}"
        while name in self.step.values:  # both operands are one value
            name += ".2"
        dtype = self.forward.kinds.maps if source.dtype is FP32 else source.dtype
        names[key] = self.step.value(source._replace(name=name, dtype=dtype))

    def _flow(self, node: Node, key: str) -> None:
        """Add the gradient of an operand to those of the value that it is."""
        number = 1 if key == "dx" else int(key[2:])
        self._add_gradient(node.reads[number - 1].value, self.symbols[node.name][key])

    def _parameter_part(self, node: Node, symbol: str, key: str) -> bool:
        """Name the gradient of a parameter; False where it has none."""
        names = self.symbols[node.name]
        source = self.step.values[names[symbol]]
        computed = symbol == "w" and len(node.reads) > 1
        if computed:
            edge = node.reads[1]
            if not (edge.gradient and self.trained[edge.value]):
                return False
        elif not self.trained[source.name]:
            return False
        shared = computed or self.forward.copies_of.get(source.name, source.name) in self._shared
        name = f"{source.name}.gradient"
        if shared and not computed:
            name = f"{name}.{node.name}"
        while name in self.step.values:
            name += ".2"
        names[key] = self.step.value(source._replace(name=name, dtype=FP32))
        return True

    def _flow_to_weight(self, node: Node, key: str) -> None:
        """Add the gradient of a layer's weights to those of the parameter, or of their value."""
        names = self.symbols[node.name]
        source = self.step.values[names[key[1:]]]
        gradient = names[key]
        if key == "dw" and len(node.reads) > 1:
            like = self.step.values[node.reads[1].value]
            dtype = self.forward.kinds.maps if like.dtype is FP32 else like.dtype
            flat = like._replace(name=f"{gradient}.copy", dtype=dtype)
            self.forward.copy(gradient, self.step.value(flat), "backward")
            self._add_gradient(like.name, flat.name)
        else:
            parameter = self.forward.copies_of.get(source.name, source.name)
            self.gradients.setdefault(parameter, []).append(gradient)

    def _repeated_gradient(self, node: Node, form: OperationForm, weights: Sequence[str]) -> None:
        """The gradients of parameters that an operation uses again and again: a sum of them all."""
        names = self.symbols[node.name]
        totals = {word: names[word] for word in weights}
        for word, total in totals.items():
            value = self.step.values[total]
            names[word] = self.step.value(value._replace(name=f"{total}.first"))
        self.forward.note(node, form, "backward", 1)
        firsts = {word: names[word] for word in weights}
        for word, total in totals.items():
            value = self.step.values[total]
            names[word] = self.step.value(value._replace(name=f"{total}.next"))
        self.forward.note(node, form, "backward", node.count - 1)
        for word, total in totals.items():
            operands = {"x1": firsts[word], "x2": names[word], "y": total}
            chain = chain_of("add", operands, total, maps=FP32)
            self.step.operations.append(
                Operation(total, "sum of gradients", "backward", chain=chain, count=node.count - 1)
            )
            names[word] = total

    @cached_property
    def _shared(self) -> set[str]:
        """Values of parameters that several nodes have."""
        used: Counter[str] = Counter()
        for node in self.workload.nodes:
            names = self.symbols[node.name]
            symbols = self.rules[node.name].parameters
            parameters = {names[symbol] for symbol in symbols if symbol in names}
            used.update({self.forward.copies_of.get(name, name) for name in parameters})
        used.update(name for node in self.workload.nodes for name in {*node.inputs})
        return {name for name, n in used.items() if n > 1}

    def _add_gradient(self, name: str, gradient: str) -> None:
        """Note a part of the gradient of a value, with the axes that the value has."""
        if not self.trained[name]:
            return
        value = self.step.values[name]
        viewed = self.forward.view(gradient, value.shape, value.kind, value.repeats, "backward")
        self.gradients.setdefault(name, []).append(viewed)

    def _gradient(self, name: str) -> str | None:
        """The gradient of a value: that of its one reader, or the sum of all."""
        parts = self.gradients.get(name, [])
        if len(parts) < 2:
            return parts[0] if parts else None
        like = self.step.values[parts[0]]
        return self._sum(name, parts, self.step.values[name].dtype, like.dtype)

    def _sum(self, name: str, parts: Sequence[str], dtype: DType, maps: DType) -> str:
        """The sum of the parts of a value's gradient."""
        value = self.step.values[name]
        total = self.step.value(value._replace(name=f"{name}.gradient", dtype=dtype))
        operands = {f"x{number}": part for number, part in enumerate(parts, 1)}
        chain = chain_of("add", {**operands, "y": total}, total, maps=maps)
        self.step.operations.append(
            Operation(total, "sum of gradients", "backward", chain=chain, count=value.repeats)
        )
        return total

    def _parameter_gradient(self, name: str) -> None:
        """The gradient of a parameter in fp32, as the optimizer takes it."""
        parts = list(self.gradients.get(name, []))
        gradient = f"{name}.gradient"
        if not parts or parts == [gradient]:
            return
        value = self.step.values[name]
        for number, part in enumerate(parts):
            source = self.step.values[part]
            if source.kind != value.kind or source.groups != value.groups:
                parts[number] = self.step.value(value._replace(name=f"{part}.copy"))
                self.forward.copy(part, parts[number], "backward")
            elif source.dtype is not FP32 and len(parts) > 1:
                parts[number] = self.forward.cast(part, FP32, "backward")
        if len(parts) > 1:
            self._sum(name, parts, FP32, FP32)
            return
        self.step.value(value._replace(name=gradient))
        if self.step.values[parts[0]].dtype is FP32:
            self.forward.note_view(parts[0], gradient, "backward")
        else:
            chain = chain_of("cast", {"x": parts[0], "y": gradient}, gradient)
            self.step.operations.append(Operation(gradient, "cast", "backward", chain=chain))


def _unequal(node: Node) -> bool:
    """Return whether the values that a node reads differ in shape."""
    return len({edge.shape for edge in node.reads}) > 1
