"""Who computes a step: the native executor, and the numpy one that it is held against."""
