"""The call forms of the operators' own documentation, one module per library.

``tbe`` builds lazy tensors as the tensor compiler's Python functions do, ``aclnn`` mirrors the
two-phase C calls, ``ftdsp`` the C functions of the DSP library. All of them check the arguments
as documented and run the operators of ``npusim.ops``.
"""
