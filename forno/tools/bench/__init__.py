"""``forno bench`` and the verbs below it."""
