"""What runs in a peer's own environment: a script per engine that prints rates as one JSON line. Imports nothing of forno."""
