"""The way of a bias into the cube: a row of it for each tile, into the table that C begins from."""

from __future__ import annotations

from npusim.language import FP32, Language, SlotRegion, Tensor


class BiasTable:
    """Room in L1 and BT for ``n`` numbers of ``bias``, (N,) of fp16, fp32 or int32.

    The task column "bias" says where those of a tile begin. The table holds numbers of 32 bits, to
    which fp16 widens as it is loaded (vendor documentation); here it lies in the same room as it
    came. Raises ``CapacityError`` where BT has less.
    """

    def __init__(self, k: Language, bias: Tensor, n: int) -> None:
        self.k = k
        self.bias = bias
        dtype = bias.dtype
        self.l1 = k.buffer("L1", (n,), dtype, name="bias_l1")
        self.table = k.buffer("BT", (n * FP32.bytes // dtype.bytes,), dtype, name="bias_bt")

    def load(self, n: int) -> SlotRegion:
        """Bring the ``n`` numbers of this tile into the table."""
        dtype = self.bias.dtype
        size = n * dtype.bytes
        in_l1 = self.l1.next().at(0, size)
        row = self.table.next().at(0, size)
        self.k.data_move(in_l1, self.bias.at(0, size, base="bias"), dtype)
        self.k.data_move(row, in_l1, dtype)
        return row
