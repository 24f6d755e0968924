"""What runs inside a peer's own environment: one script per engine, printing rates as one JSON line. Imports nothing of forno."""
