"""The verbs of the command line that are not the server."""
