"""The documented limits of operators, per product: tables of ``configs/constraints``, applied."""
