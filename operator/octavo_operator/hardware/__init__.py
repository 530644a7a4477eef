"""Pure: which hardware a pool has, from node labels and allocatable or from the spec."""
