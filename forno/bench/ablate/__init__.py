"""``forno bench ablate``: what each technique is worth, measured by leaving it out."""
