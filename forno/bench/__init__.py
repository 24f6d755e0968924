"""Load on any OpenAI-compatible server, and what came of it. Talks HTTP only: it imports nothing of the engine."""
