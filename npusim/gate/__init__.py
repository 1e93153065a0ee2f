"""The gate of a repository: what became slower between two revisions, and by which line."""
