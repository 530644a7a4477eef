"""Operations in Triton, for CUDA devices from compute capability 8.0: one file per operation, named as in `reference/`.

One source serves every generation. What differs between them is a `tl.constexpr` that the launcher sets from the
device's compute capability, never from its name. Values are loaded, cast to float32 for arithmetic, and cast to
bfloat16 only as operands of `tl.dot` and at a store: anything else the interpreter computes wrongly (tests run there).
"""
