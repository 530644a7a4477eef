"""Pure: what inspect pods say, and what to do about it."""
