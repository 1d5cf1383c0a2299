"""The audit log as people read it: which entries a reader sees, a sentence for each action, and what it was done to."""
