"""What the engine does, explained: a bounded record of steps and requests, and what can be read from it.

Written by the engine's thread at a few microseconds a step; everything dear happens when somebody asks. Holds lengths,
times, ids and hashes, never a prompt or an output.
"""
