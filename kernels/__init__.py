"""The kernels, each a loop nest; ``npusim.kernels`` is how they are imported."""

# A checkout has this folder at its top, so that it is easy to find. Imported by that name it would
# be a second set of modules, whose classes are not those the operators know.
if __name__ != "npusim.kernels":
    raise ImportError(
        f"{__name__} is a folder of npusim: import npusim.kernels, such as "
        "`from npusim.kernels.matmul.matmul import Tiling`"
    )
