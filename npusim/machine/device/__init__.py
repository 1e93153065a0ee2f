"""Devices as data: ``spec`` says what one is, ``config`` reads one, ``catalog`` finds one."""
