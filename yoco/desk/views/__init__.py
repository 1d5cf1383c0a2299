"""Views of the desk: account managers see risk, decide, and are shown what each step will do before it does it."""
