"""One plain-torch function per operation: the specification that every kernel is tested against.

Each gives the same bits for a row whether it runs alone or in any batch (see `linear.py` for how), so that a
difference between two runs of the engine is always a fault and never rounding.
"""
