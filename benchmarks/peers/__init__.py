"""Other engines, each set up at its best in a place of its own outside this repository."""
