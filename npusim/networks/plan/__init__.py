"""In which formats the values of a step lie, and what is launched in which order."""
