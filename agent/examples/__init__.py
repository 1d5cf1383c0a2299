"""Training scripts that live with the agent; each is a complete program."""
