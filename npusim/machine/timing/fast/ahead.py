"""Compile the engine ahead of time.

Numba translates the same functions as ever, each entry as one C function whose only argument is a
table of addresses, extents and numbers; LLVM makes an object of them, and the C compiler of the
machine (``CC``, else ``cc``) links it to a library that needs nothing but ``memset``.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import llvmlite.binding as llvm
import numba
from numba.core import cgutils, types
from numba.core.typing.templates import Signature
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

from npusim.machine.timing.fast import library


def _unpacked(kinds: tuple[Any, ...]) -> Any:
    """An intrinsic that makes arguments of these types from a table (see ``library.flatten``)."""
    whole = cast(Any, types).Tuple(kinds)

    @intrinsic
    def unpack(typing: Any, table: Any) -> tuple[Signature, Callable[..., Any]]:
        def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            place = 0

            def word() -> Any:
                nonlocal place
                place += 1
                return builder.load(cgutils.gep_inbounds(builder, given[0], place - 1))

            def made(kind: Any) -> Any:
                if isinstance(kind, types.Array):
                    return _array(context, builder, kind, word)
                if isinstance(kind, types.BaseTuple):
                    return context.make_tuple(builder, kind, [made(one) for one in cast(Any, kind)])
                return context.cast(builder, word(), types.int64, kind)

            return context.make_tuple(builder, whole, [made(kind) for kind in kinds])

        return whole(table), generate

    return unpack


def _array(context: Any, builder: Any, kind: Any, word: Callable[[], Any]) -> Any:
    """A contiguous array of type ``kind`` over memory that somebody else owns."""
    array = make_array(kind)(context, builder)
    item = context.get_constant(
        types.intp, context.get_abi_sizeof(context.get_data_type(kind.dtype))
    )
    address = builder.inttoptr(word(), array.data.type)
    shape = [word() for _ in range(kind.ndim)]
    strides: list[Any] = []
    step = item
    for extent in reversed(shape):
        strides.insert(0, step)
        step = builder.mul(step, extent)
    populate_array(
        array, data=address, shape=shape, strides=strides, itemsize=item, meminfo=None, parent=None
    )
    return array._getvalue()


def translated(examples: Mapping[Callable[..., None], tuple[Any, ...]]) -> Any:
    """Entries as one module of LLVM; ``examples`` has arguments of the types that each has.

    Raises ``TypeError`` for code that a library cannot have.
    """
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = _machine("")
    whole = llvm.parse_assembly("")
    whole.triple, whole.data_layout = machine.triple, str(machine.target_data)
    for function, example in examples.items():
        whole.link_in(_translated(function, example))
    return whole


def can_link() -> bool:
    """True if there is a C compiler."""
    return shutil.which(_compiler()[0]) is not None


def _compiler() -> list[str]:
    return shlex.split(library.asked("CC") or "cc")


def link(module: Any, level: str, target: Path) -> None:
    """Link a module to the library ``target`` for processors of ``level`` (``library.levels``).

    Raises ``OSError`` or ``subprocess.CalledProcessError`` where there is no C compiler, or it
    fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        part = Path(folder, "engine.o")
        part.write_bytes(_machine(level).emit_object(module.clone()))  # which changes it
        subprocess.run(
            [*_compiler(), "-shared", "-nostdlib", "-s", "-o", target, part],
            check=True,
            capture_output=True,
        )


def _machine(level: str) -> Any:
    """Code for processors of this level, wherever it is loaded."""
    return llvm.Target.from_triple(llvm.get_default_triple()).create_target_machine(
        cpu=level, opt=3, reloc="pic", codemodel="default"
    )


def _translated(function: Any, example: tuple[Any, ...]) -> Any:
    """``function`` as a module of LLVM with a C function of its name, which takes a table.

    Raises ``TypeError`` where it needs functions of Python or Numba, as errors and new arrays do.
    """
    unpack = _unpacked(tuple(numba.typeof(one) for one in example))

    def called(table: Any) -> None:
        function(*unpack(table))

    kind = types.void(types.CPointer(types.int64))
    made = cast(Any, numba.cfunc)(kind, _nrt=False, error_model="numpy")(called)
    module = llvm.parse_assembly(made.inspect_llvm())
    for inside in module.global_variables:
        if not inside.is_declaration:
            inside.linkage = "internal"
    for inside in module.functions:
        if inside.name == made.native_name:
            inside.name = function.__name__
        elif not inside.is_declaration:
            inside.linkage = "internal"
        elif not inside.name.startswith("llvm."):
            raise TypeError(
                f"{function.__name__} needs {inside.name}, which a library cannot have: compiled "
                "code may not raise errors or make arrays"
            )
    return module
