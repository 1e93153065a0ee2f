"""The launches of pooling as the vendor's library runs it, on chips whose rules are known."""

from __future__ import annotations

from npusim.call.call import Call
from npusim.call.tilings.words import is_library
from npusim.kernels.windows.library_max_pool import LibraryMaxPool
from npusim.kernels.windows.library_max_pool_grad import LibraryMaxPoolGrad
from npusim.kernels.windows.pool import Pool
from npusim.machine.isa.operands import Tensor
from npusim.problem.convolution import Convolution


def launch_library_pool(
    call: Call, shape: Convolution, read: Tensor, out: Tensor, mask: Tensor, *, back: bool
) -> bool:
    """Launch maximum pooling with a mask, or ``back`` its gradient, as the library does.

    Launch nothing and return False where another tiling is asked for, where the library of a chip
    is not known, and for windows that its kernel does not take.
    """
    if not (call.device.library_rules and is_library(call.options.tiling, Pool.name)):
        return False
    kind = LibraryMaxPoolGrad if back else LibraryMaxPool
    if not kind.takes(shape, read.dtype, call.device):
        return False
    kernel = kind(shape, read, out, mask)
    for clearing in kernel.before:
        call.launch(clearing)
    call.launch(kernel)
    call.notes.append(kernel.note(call.device))
    return True
