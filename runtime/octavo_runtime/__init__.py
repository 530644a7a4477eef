"""Octavo's inference runtime: paged FP8 KV cache, INT4 experts, a verdict for every row of every step.

Importing this package imports nothing heavy: `octavo_runtime.contract` is read by the operator, which has no torch.
"""
