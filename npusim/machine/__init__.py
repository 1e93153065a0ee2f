"""The machine: devices, instructions, programs, numbers and time, for any operator."""
