"""The fast engine: the reference's meaning of time as compiled code on flat arrays."""
