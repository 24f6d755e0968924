"""The C++ backend: packing weights, planning buffers, and turning a program into the records that the executor walks."""
