"""The layers of a ``torch.nn.Module``, without computing anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from importlib import import_module
from math import prod
from typing import Any, NamedTuple

from npusim.base.errors import ArgumentError
from npusim.base.objects import replace
from npusim.base.resources import optional
from npusim.workloads.elementwise import ElementwiseLayer
from npusim.workloads.kinds import BY_ROW, KINDS, UNKNOWN, kinds_in, listed
from npusim.workloads.layers import INPUT, ConvLayer, LinearLayer, Workload
from npusim.workloads.numbers import FEW, numbers_of
from npusim.workloads.recorder import Part, Recorder
from npusim.workloads.views import (
    IMAGES,
    elements_of,
    image_of,
    part_of,
    storage_of,
    weight_of,
)

#: PyTorch's name of an operation: its kind of element-wise layer, where that is called otherwise.
_KINDS = kinds_in("torch")

#: Operations that multiply two matrices, or two stacks of them, and the first of both operands.
_PRODUCTS = {"mm": 0, "bmm": 0, "mv": 0, "addmm": 1, "baddbmm": 1, "addmv": 1}

#: Operations whose result is the same whatever tensors they get, and others that compute nothing,
#: besides those whose result is a view.
_CONSTANT = listed("constant", "torch")
_MOVES = (*_CONSTANT, *listed("moves", "torch"))


class Product(NamedTuple):
    """A product (rows, cin) by (cin, cout), or ``groups`` of them where both are stacks.

    ``left`` and ``right`` say of its operands whether they have a gradient; ``weight`` is the right
    one where it is a matrix for all, ``added`` what the same operation adds to the product, and
    ``operands`` what it reads besides the product before it.
    """

    groups: int
    rows: int
    cin: int
    cout: int
    left: bool
    right: bool
    weight: Any = None
    added: Any = None
    operands: Sequence[Any] = ()

    @property
    def bias(self) -> Any:
        """What is added, if that is a number for each feature of a layer."""
        row = tuple(getattr(self.added, "shape", ()))[-1:] == (self.cout,)
        return self.added if row and self.added.numel() == self.cout and not self.groups else None

    @property
    def layer(self) -> LinearLayer:
        """The layer of all its rows."""
        sizes = {"rows": self.rows, "cin": self.cin, "cout": self.cout}
        biased: Any = {**sizes, "bias": self.bias is not None}
        return LinearLayer(name="", products=self.groups, input_gradient=self.left, **biased)


def products(func: Any, args: Sequence[Any]) -> list[Product]:
    """The products of matrices that a dispatched operation is; a fused attention has two."""
    name = func._schema.name.partition("::")[2]
    if name in _PRODUCTS:
        a, b = args[_PRODUCTS[name] :][:2]
        groups, rows = (int(a.shape[0]) if a.dim() > 2 else 0), int(a.shape[-2])
        if groups and b.stride(0) == 0:  # one matrix, repeated
            groups, rows = 0, groups * rows
        sizes = groups, rows, int(a.shape[-1]), int(b.shape[-1]) if b.dim() > 1 else 1
        more = args[0] if _PRODUCTS[name] else None
        trained = a.requires_grad, b.requires_grad
        return [Product(*sizes, *trained, None if groups else b, more, (a, b))]
    if not name.startswith("_scaled_dot_product_") or name.endswith("backward"):
        return []
    q, k, v = args[:3]
    groups, rows, keys = prod(q.shape[:-2]), int(q.shape[-2]), int(k.shape[-2])
    first = Product(groups, rows, int(q.shape[-1]), keys, q.requires_grad, k.requires_grad)
    second = Product(
        groups, rows, keys, int(v.shape[-1]), first.left or first.right, v.requires_grad
    )
    return [first._replace(operands=(q, k)), second._replace(operands=(v,))]


class Made(NamedTuple):
    """The latest product, its result, and its place among the nodes."""

    product: Product
    out: Any
    at: int

    def biased(self, func: Any, args: Sequence[Any]) -> Product | None:
        """The product with the bias that an operation of its own adds to it, None of others."""
        name = func._schema.name.partition("::")[2].removesuffix("_")
        if name != "add" or self.product.added is not None or not hasattr(args[0], "data_ptr"):
            return None
        places = [one.untyped_storage()._cdata for one in (args[0], self.out)]
        found = self.product._replace(added=args[1])
        return found if places[0] == places[1] and found.bias is not None else None


def computed(func: Any, out: Any) -> str:
    """The name of a dispatched operation that computes with floating-point values, "" of others."""
    name: str = func._schema.name.partition("::")[2].removesuffix("_")
    if name in _MOVES or not any("Tensor" in str(one.type) for one in func._schema.arguments):
        return ""
    made = out[0] if isinstance(out, (list, tuple)) and out else out
    aliases = [one.alias_info for one in func._schema.returns]
    view = bool(aliases) and all(one is not None and not one.is_write for one in aliases)
    floating = getattr(made, "is_floating_point", lambda: False)()
    return "" if view or not floating else name


def workload(model: Any, input_shape: Sequence[int], *, name: str = "") -> Workload:
    """The layers of ``model`` in the order in which one forward pass of an image uses them.

    ``input_shape`` is that of one image, (channels, ...), without the batch. Tensors have shapes
    but no data (the meta device), so the pass takes neither time nor memory; ``model`` is left as
    it is. What is seen is the operations that PyTorch dispatches, whichever module or function
    calls them: convolutions, products of matrices (attention is two), element-wise layers, and by
    name what else computes; each is a node of a graph, whose edges are the tensors that it reads.
    Layers of one shape are one with a count, named after the first.

    Raises ``ArgumentError`` where the model does not take such an input, or has no layer to time.
    """
    torch = optional("torch", "the layers of a torch.nn.Module need PyTorch")
    if not isinstance(model, torch.nn.Module):
        raise ArgumentError(f"model is a {type(model).__name__}; it must be a torch.nn.Module")
    title = name or type(model).__name__
    shape = (IMAGES, *(int(size) for size in input_shape))
    copy = deepcopy(model).to("meta")
    seen = _Seen(torch, copy)
    image = torch.empty(shape, device="meta")
    seen.found.sources[storage_of(image)] = (INPUT,)
    seen.whole[storage_of(image)] = image
    try:
        with seen.recorded():
            copy(image)
    except Exception as error:  # whatever a stranger's module raises
        text = str(error).partition("\n")[0]
        raise ArgumentError(
            f"{title} does not run on an input of shape {shape} without data: "
            f"{type(error).__name__}: {text}"
        ) from error
    workload = Workload.of_nodes(title, "", seen.found.merged())
    if not workload.layers:
        raise ArgumentError(f"{title} has no convolution and no product of matrices")
    sizes = "x".join(map(str, input_shape))
    return replace(workload, description=f"{title} (PyTorch), input {sizes}")


class _Seen:
    """What a forward pass on the meta device shows: a graph, and where training begins.

    A tensor is known by its storage, which its views have too; all are held, so that none gets the
    place of another. What reads a part of one, such as a slice, reads a node that is this part.
    """

    def __init__(self, torch: Any, model: Any) -> None:
        self.torch, self.model = torch, model
        self.found = Recorder()
        self.names = {id(m): name or type(m).__name__ for name, m in model.named_modules()}
        self.inside: list[Any] = []  # modules entered and not left
        self.made: Made | None = None
        self.held: list[Any] = []
        self.whole: dict[int, Any] = {}  # the tensor that a storage was made for
        # Parts of a storage that were written in place and their nodes, behind those of all of it.
        self.written: dict[int, list[tuple[Part | None, tuple[str, ...]]]] = {}

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Watch operations, and the modules that they are in, while the body runs."""
        modules = list(self.model.modules())
        hooks = [m.register_forward_pre_hook(lambda m, _: self.inside.append(m)) for m in modules]
        hooks += [m.register_forward_hook(self._left) for m in modules]
        base = import_module("torch.utils._python_dispatch").TorchDispatchMode

        def dispatch(_: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            read = self._tensors([*args, *(kwargs or {}).values()])
            self._follow(func, read, self._tensors([out]), self._noted(func, args, out))
            return out

        mode = type("Operations", (base,), {"__torch_dispatch__": dispatch})
        fast = self.torch.backends.mha  # one operation for a whole layer, where nothing is trained
        enabled = fast.get_fastpath_enabled()
        fast.set_fastpath_enabled(False)
        try:
            with self.torch.enable_grad(), mode():
                yield
        finally:
            fast.set_fastpath_enabled(enabled)
            for hook in hooks:
                hook.remove()

    def _noted(self, func: Any, args: Sequence[Any], out: Any) -> list[str]:
        """The nodes that an operation is, which give its result; most often one or none."""
        made: list[str] = []
        if func is self.torch.ops.aten.convolution.default:
            layer = self._convolution(args)
            return [self.found.add(self._name("convolution"), layer, self._of(args[:1]))]
        for one in products(func, args):
            made = self._product(one, out, made)
        if not made and self.made and self.made.biased(func, args):
            self.found.bias(self.made.at)
            self.made = None
        elif not made:
            made = self._other(func, args, out)
        return made

    def _follow(self, func: Any, read: Sequence[Any], out: Sequence[Any], made: list[str]) -> None:
        """Note of which nodes the results ``out`` of an operation are."""
        name = func._schema.name.partition("::")[2].removesuffix("_")
        copied = read[1:] if name == "copy" else () if name in _CONSTANT else read
        places = [storage_of(one) for one in read]
        written = func._schema.is_mutable
        for one in out:
            place = storage_of(one)
            if place in places and not written:  # a view, perhaps of rows as those of each image
                before = self.whole.get(place, one)
                merged = one.dim() < before.dim() and one.shape[:1] == (IMAGES,)  # as shuffled
                found = IMAGES in one.shape and IMAGES not in before.shape
                if before.numel() == one.numel() and (merged or found):
                    self.whole[place] = one
                continue
            whole = one.numel() * one.element_size() == one.untyped_storage().nbytes()
            kept = self.found.of([place]) if place in places and not whole else ()
            floats = one.is_floating_point()
            sources = made or (
                self._of(copied) if floats else self.found.of(map(storage_of, copied))
            )
            if whole:
                self.whole[place] = one
                self.written.pop(place, None)
            elif written and place in self.whole:
                parts = self.written.setdefault(place, [(None, kept)])
                parts.append((part_of(self.whole[place], one), tuple(sources)))
            self.found.sources[place] = tuple(dict.fromkeys((*kept, *sources)))
        self.held += out

    def _tensors(self, values: Sequence[Any]) -> list[Any]:
        """The tensors among values, and in lists among them."""
        flat = [x for one in values for x in (one if isinstance(one, (list, tuple)) else [one])]
        return [one for one in flat if isinstance(one, self.torch.Tensor)]

    def _of(self, values: Sequence[Any]) -> tuple[str, ...]:
        """The nodes that these operands are of."""
        return tuple(name for one in self._tensors(values) for name in self._read(one))

    def _read(self, one: Any) -> tuple[str, ...]:
        """The nodes that a tensor is of: a part of one is a node of its own.

        A part written in place is of what wrote it, one beside it of what was there before.
        """
        place = storage_of(one)
        sources, whole = self.found.of([place]), self.whole.get(place)
        part = part_of(whole, one) if whole is not None else None
        if whole is None or part is None:
            return sources
        for written, nodes in reversed(self.written.get(place, [])):
            if written == part:
                return nodes
            if written is None:
                sources = nodes
            elif not written.apart(part):
                break
        if len(sources) != 1:
            return sources
        return (self.found.part(sources[0], part, trained=bool(whole.requires_grad)),)

    def _left(self, *_: Any) -> None:
        self.inside.pop()

    def _name(self, what: str) -> str:
        """The module that computes, and ``what`` where it does more than that."""
        if not self.inside:
            return what
        nn, inside = self.torch.nn, self.inside[-1]
        name = self.names[id(inside)]
        simple = type(inside).__module__.startswith("torch.nn.") and not any(inside.children())
        whole = simple or isinstance(inside, (nn.Linear, nn.modules.conv._ConvNd))
        return name if whole else f"{name}.{what}"

    def _product(self, one: Product, out: Any, before: Sequence[str]) -> list[str]:
        """Note a product of one image; a stack that all images share is a layer for each of it."""
        inputs = (*before, *self._of(one.operands))
        groups, rows, count = one.groups, one.rows, 1
        if groups and groups % IMAGES == 0:
            groups //= IMAGES
        else:
            groups, count, rows = 0, max(1, groups), rows // IMAGES
        whole = rows * max(1, groups) * IMAGES * count == max(1, one.groups) * one.rows
        if IMAGES in (one.cin, one.cout) or not whole:
            called = "product over all images"
            layer = ElementwiseLayer(kind=UNKNOWN, called=called, shape=image_of(out))
            return [self.found.add(self._name("product"), layer, inputs)]
        self.made = Made(one, out, len(self.found.nodes))
        name = self._name("product" if groups else "linear")
        timed = replace(one.layer, rows=rows, products=groups)
        made = [self.found.add(name, timed, inputs) for _ in range(count)]
        if one.added is not None and one.bias is None:
            added = self._elementwise("add", [one.added, out], out, {})
            if added:
                inputs = (*made, *self._of([one.added]))
                made = [self.found.add(self._name(added.kind), added, inputs)]
        return made

    def _other(self, func: Any, args: Sequence[Any], out: Any) -> list[str]:
        """Note an operation that is no product, unless it computes with weights alone."""
        inside = self.inside[-1] if self.inside else None
        name = computed(func, out)
        if not name or not self.found.of(map(storage_of, self._tensors(args))):
            return []
        dropout = isinstance(inside, self.torch.nn.modules.dropout._DropoutNd)
        kind = _kind(name, dropout=dropout)
        made = out[0] if isinstance(out, (list, tuple)) else out
        if not kind and (dropout or not image_of(made)):
            return []
        if kind in BY_ROW and not _along_last(args):
            kind, name = "", f"{kind} along other axes"
        if kind == "batch_norm" and args[0].shape[0] == 1:  # channels of all images side by side
            kind = "instance_norm"
        windows = _windows(func, args) if kind.endswith("_pool") else {}
        if set(windows.pop("dilation", ())) - {1}:
            kind, name, windows = "", f"dilated {kind}", {}
        given = [one for one in args[1:] if isinstance(one, (int, float)) or one is None]
        windows |= {"numbers": found} if (found := numbers_of(kind, name, given)) else {}
        if kind == "pad" and not any(args[2:]):
            kind = "slice" if min(args[1]) < 0 else kind
            sides = tuple(zip(args[1][::2], args[1][1::2], strict=True))[::-1]
            windows = {"padding": ((0, 0),) * (made.dim() - 1 - len(sides)) + sides}
        layer = self._elementwise(kind or name, args, made, windows)
        if not layer:
            return []
        if layer.kind in FEW.values():  # the map before what is fewer
            args = sorted(self._tensors(args), key=lambda one: -elements_of(one))
        return [self.found.add(self._name(layer.called or layer.kind), layer, self._of(args))]

    def _convolution(self, args: Sequence[Any]) -> ConvLayer:
        x, w, bias, stride, padding, dilation, transposed, extra, groups = args
        dims = x.dim() - 2
        return ConvLayer(
            name="",
            cin=int(x.shape[1]),
            cout=int(w.shape[1] * groups if transposed else w.shape[0]),
            spatial=tuple(map(int, x.shape[2:])),
            kernel=tuple(map(int, w.shape[2:])),
            stride=_each(stride, dims),
            padding=tuple((pad, pad) for pad in _each(padding, dims)),
            dilation=_each(dilation, dims),
            groups=int(groups),
            transposed=bool(transposed),
            output_padding=_each(extra, dims) if any(extra) else (),
            input_gradient=bool(x.requires_grad),
            bias=bias is not None,
        )

    def _elementwise(
        self, kind: str, args: Sequence[Any], made: Any, windows: Mapping[str, Any]
    ) -> ElementwiseLayer | None:
        """The element-wise layer that an operation is, if it is one on images.

        ``kind`` is one of those known, or what else the operation is called.
        """
        flat = self._tensors(args)
        read = [one for one in flat if one.dim() > 1]
        if not read:
            return None
        largest = max(read, key=lambda one: one.numel())
        if kind in FEW and sum(elements_of(one) == largest.numel() for one in read) < 2:
            sided = kind in ("sub", "div") and "numbers" not in windows
            kind = f"{kind} of few elements" if sided else FEW[kind]
        shape = image_of(made if kind == "concat" else largest)
        if not shape:
            return None
        out, last = image_of(made), int(largest.shape[-1])
        if kind in BY_ROW and shape[-1] != last:  # of heads and images on one axis
            shape = out = (prod(shape) // last, last)
        if kind in FEW.values() and "numbers" not in windows:
            few = [one for one in flat if one.requires_grad and not self._of([one])]
            windows = {**windows, "weight": weight_of(few[0], largest)} if few else windows
        known: Any = {"kind": kind} if kind in KINDS else {"kind": UNKNOWN, "called": kind}
        trained = any(one.requires_grad for one in flat)
        sizes: Any = {**known, "shape": shape, "out": out, **windows}
        return ElementwiseLayer(**sizes, input_gradient=trained)


def _windows(func: Any, args: Sequence[Any]) -> dict[str, Any]:
    """Kernel, stride and padding of a pooling.

    There are none of a mean, and none of an adaptive pooling whose windows differ.
    """
    names = (one.name for one in func._schema.arguments)
    given = dict(zip(names, args, strict=False))
    dims = 3 if "3d" in func._schema.name else 2
    x, out = args[0].shape[-dims:], given.get("output_size", ())
    if prod(out) > 1 and not any(size % made for size, made in zip(x, out, strict=True)):
        return {"kernel": tuple(int(size // made) for size, made in zip(x, out, strict=True))}
    if "kernel_size" not in given:
        return {}
    counted = given.get("count_include_pad", "avg" in func._schema.name)
    counted = counted and any(given.get("padding", ()))
    return {
        **({"numbers": (1.0,)} if counted else {}),
        "kernel": _each(given["kernel_size"], dims),
        "stride": _each(given.get("stride", ()), dims),
        "dilation": given.get("dilation", ()),
        "padding": tuple((pad, pad) for pad in _each(given.get("padding", (0,)), dims)),
    }


def _each(values: Sequence[int], dims: int) -> tuple[int, ...]:
    """One value for each axis, of which only one may have been stated."""
    return tuple(map(int, values)) * (dims if len(values) == 1 else 1)


def _along_last(args: Sequence[Any]) -> bool:
    """Whether an operation on rows has these along the last axis, and no other."""
    axis, axes = args[1], args[0].dim()
    several = isinstance(axis, (list, tuple))  # the sizes of what is normalised
    return len(axis) == 1 if several else bool(axis % axes == axes - 1)


def _kind(short: str, *, dropout: bool) -> str:
    """The kind of the element-wise layer that this operation is, "" where it is none."""
    if dropout:  # composed of operations on its mask, and the product with it
        return "dropout" if short in ("native_dropout", "mul") else ""
    kind = _KINDS.get(short, short)
    if short.startswith(("upsample_", "_upsample_")):
        linear = "linear" in short and not short.endswith("_aa")
        kind = "upsample" if "nearest" in short else "interpolate" if linear else ""
    kind = kind.partition("2d")[0].partition("3d")[0].removeprefix("_").removeprefix("adaptive_")
    return kind if kind in KINDS else ""
