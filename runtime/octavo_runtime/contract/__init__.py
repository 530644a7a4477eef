"""What operator and runtime must agree on, in one place and without torch.

Model facts, the precision table, the memory arithmetic, the parallel layout, launch flags, endpoint paths, the
termination message and metric names. A figure that both sides need lives here and nowhere else.
"""
