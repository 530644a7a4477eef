"""Operations in C for the CPU, called by ctypes: one file per operation, named as its specification in `reference/`.

`src/` holds the C; `build` compiles all of it once per instruction set, `library` loads the best one this CPU can run.
"""
