"""Programs: the kernel language, templates and task tables, and the waits between pipes."""
