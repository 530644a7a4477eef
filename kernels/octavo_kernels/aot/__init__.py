"""Every Triton kernel compiled for every GPU generation ahead of time, with no GPU: `python -m octavo_kernels.aot`.

limits     what a multiprocessor of each generation has, from NVIDIA's documents
cases      the AotCases of the package's kernels, and the hash that says whether one must be compiled again
compile    one case for one architecture in this process's Triton: registers, stack, shared memory, instructions
worker     a process that does so for others; one per Triton version and core
versions   a second Triton beside the installed one
matrix     cases x architectures x versions over workers and cache
gates      what must be true of a result: pure
report     the table and the JSON
occupancy, roofline   what the results mean on a device: blocks in flight, bytes, bounds
"""
