"""Schedule, run, commit, collect: the loop that turns requests into outputs, and its asynchronous front."""
