"""Programs: the kernel language, templates and unit tables, and the waits between pipes."""
