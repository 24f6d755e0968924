"""From what a user calls a model to an opened checkpoint: fetching, file formats, names. Every byte is checked before use."""
