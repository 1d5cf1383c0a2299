"""The analytics as people read them: a sentence, a chart, a table, and the same figures as a file."""
